"""Settings of the MQTT bridge: an error for each mistake, none with a password."""

from __future__ import annotations

from pathlib import Path

import pytest

from arborcast.core.errors import ConfigError
from arborcast.core.mqtt.settings import MqttSettings

URLS = "broker.example http://broker.example mqtt:// mqtt://broker.example:0 mqtt://broker.example:99999 mqtt://[::1"
MORE_URLS = "mqtt://anna:secret@broker.example mqtt://broker.example/topic mqtt://broker.example?x"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        *(({"url": url}, "mqtt.url must be mqtt://host:port or mqtts://host:port") for url in URLS.split()),
        *(({"url": url}, "mqtt.url must be mqtt://host:port or mqtts://host:port") for url in MORE_URLS.split()),
        ({"client_id": ""}, "mqtt.client_id = '' must have 1 to 64 letters"),
        ({"client_id": "a b"}, "mqtt.client_id = 'a b' must have"),
        ({"password": "secret"}, "mqtt.password is set without mqtt.user"),
        ({"ca_file": "ca.pem"}, "mqtt.ca_file is set, but mqtt.url is without TLS"),
        ({"url": "mqtts://broker.example", "ca_file": "none.pem"}, "mqtt.ca_file = 'none.pem': no such file"),
        ({"url": "mqtts://b", "certificate_file": "none.pem"}, "mqtt.certificate_file = 'none.pem': no such"),
    ],
)
def test_mistakes(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        MqttSettings(**{"url": "mqtt://broker.example", **settings})  # type: ignore[arg-type]  # all of these are texts
    assert "secret" not in str(raised.value)


def test_urls_of_the_topics_of_the_broker_and_no_bridge(tmp_path: Path) -> None:
    assert MqttSettings(url="mqtt://Broker.example").base == "mqtt://broker.example:1883/"
    assert MqttSettings(url="mqtts://broker.example/").base == "mqtts://broker.example:8883/"
    assert MqttSettings(url="mqtt://[::1]:1884").base == "mqtt://[::1]:1884/"
    assert MqttSettings(ca_file=str(tmp_path / "none.pem")).url == "", "files are not read"
