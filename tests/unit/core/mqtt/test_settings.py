"""Settings of the MQTT bridge: each mistake by a sentence, and none shows a password."""

from __future__ import annotations

from pathlib import Path

import pytest

from arborcast.core.errors import ConfigError
from arborcast.core.mqtt.settings import MqttSettings


@pytest.mark.parametrize(
    "url",
    [
        "broker.example",
        "http://broker.example",
        "mqtt://",
        "mqtt://broker.example:0",
        "mqtt://broker.example:99999",
        "mqtt://[::1",
        "mqtt://anna:secret@broker.example",
        "mqtt://broker.example/topic",
        "mqtt://broker.example?x",
    ],
)
def test_wrong_urls(url: str) -> None:
    with pytest.raises(ConfigError, match=r"mqtt.url must be mqtt://host:port or mqtts://host:port") as raised:
        MqttSettings(url=url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"client_id": ""}, "mqtt.client_id = '' must have 1 to 64 letters"),
        ({"client_id": "a b"}, "mqtt.client_id = 'a b' must have"),
        ({"password": "secret"}, "mqtt.password is set without mqtt.user"),
        ({"ca_file": "ca.pem"}, "mqtt.ca_file is set, but mqtt.url is without TLS"),
        ({"url": "mqtts://broker.example", "ca_file": "none.pem"}, "mqtt.ca_file = 'none.pem': no such file"),
        ({"url": "mqtts://b", "certificate_file": "none.pem"}, "mqtt.certificate_file = 'none.pem': no such"),
    ],
)
def test_other_mistakes(more: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        MqttSettings(**{"url": "mqtt://broker.example", **more})  # type: ignore[arg-type]  # all of these are texts
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("mqtt://Broker.example", "mqtt://broker.example:1883/"),
        ("mqtts://broker.example/", "mqtts://broker.example:8883/"),
        ("mqtt://[::1]:1884", "mqtt://[::1]:1884/"),
    ],
)
def test_where_topics_of_the_broker_are(url: str, base: str) -> None:
    assert MqttSettings(url=url).base == base


def test_without_a_bridge_nothing_is_looked_at(tmp_path: Path) -> None:
    assert MqttSettings(ca_file=str(tmp_path / "none.pem")).url == ""
