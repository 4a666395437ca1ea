from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest

from arborcast.core.errors import ConfigError
from arborcast.core.telemetry.metrics import Registry
from arborcast.dispatch.delivery.transport import make_transport
from arborcast.engine.gateway import __main__ as command
from arborcast.engine.gateway import parts
from arborcast.engine.install import jars
from arborcast.engine.processes.errors import JarError
from arborcast.engine.settings.loading import load_settings
from arborcast.engine.settings.outbound import policy_of
from tests.support.gateway_parts import GatewayParts
from tests.support.outbound import THIS_MACHINE


def test_the_defaults_fit_together(tmp_path: Path) -> None:
    parts.check_sizes(load_settings(home=tmp_path))


def test_what_is_accepted_must_fit_into_a_record(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path, overrides={"gateway.max_body_bytes": 8 * 1024 * 1024})
    with pytest.raises(ConfigError, match=r"kafka\.max_record_bytes = 8388608 .* gateway\.max_body_bytes = 8388608"):
        parts.check_sizes(settings)


def test_a_setting_that_is_wrong_ends_it_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "arborcast.toml"
    config.write_text("[gateway]\nprot = 1\n")
    assert command.main(["--config", str(config)]) == 2
    assert "gateway.prot" in capsys.readouterr().err


def test_it_may_open_as_many_files_as_its_user_may(tmp_path: Path) -> None:
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before, 1_024), most))
    try:
        assert command.main(["--config", str(tmp_path / "missing.toml")]) == 2
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


def test_without_the_published_schemas_it_works_and_serves_no_wsdl(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(_: str) -> list[Path]:
        raise JarError("the wsdl jars have not been fetched; run: arborcast fetch")

    monkeypatch.setattr(jars, "jar_paths", missing)
    assert parts.descriptions() is None
    assert "arborcast fetch" in caplog.text


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "mqtt.rules_file must name the file"),
        ({"mqtt.rules_file": "none.toml"}, "mqtt.rules_file = 'none.toml' cannot be read"),
        ({"mqtt.rules_file": "rules.toml", "access.methods": "basic"}, "mqtt.act_as must name the user"),
        ({"mqtt.rules_file": "rules.toml", "outbound.https_only": True}, "must be an mqtts URL"),
        ({"mqtt.rules_file": "rules.toml", "outbound.scope": "public"}, "leads to 127.0.0.1"),
    ],
)
def test_wrong_settings_of_the_mqtt_bridge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, str | bool], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rules.toml").write_text('[in.a]\nmqtt = "a"\ntopic = "a"\n')
    basic: dict[str, str | bool] = {"mqtt.url": "mqtt://127.0.0.1", "outbound.scope": "loopback"}
    settings = load_settings(home=tmp_path, overrides=basic | more)
    gateway = GatewayParts(outbound=policy_of(settings)).gateway
    with pytest.raises(ConfigError, match=words):
        parts.mqtt_bridge(gateway, settings, Registry())


def test_without_its_library_the_mqtt_bridge_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "paho.mqtt.client", None)
    settings = load_settings(home=tmp_path, overrides={"mqtt.url": "mqtt://127.0.0.1"})
    with pytest.raises(ConfigError, match=r"pip install 'arborcast\[mqtt\]'"):
        parts.mqtt_bridge(GatewayParts().gateway, settings, Registry())
    with pytest.raises(ConfigError, match=r"pip install 'arborcast\[mqtt\]'"):
        make_transport(settings.push, THIS_MACHINE, settings.mqtt)
