from __future__ import annotations

import argparse
import asyncio
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from arborcast.core.errors import ConfigError
from arborcast.core.telemetry.metrics import Registry
from arborcast.dispatch.delivery.transport import make_transport
from arborcast.engine.administrator import __main__ as administrator
from arborcast.engine.gateway import __main__ as command
from arborcast.engine.gateway import parts
from arborcast.engine.gateway.federation import close_links
from arborcast.engine.install import jars
from arborcast.engine.processes.errors import JarError
from arborcast.engine.settings.loading import load_settings
from arborcast.engine.settings.outbound import policy_of
from arborcast.ingest.federation.interests import PeerInterests
from arborcast.topic_model.records.control import SubscriptionRecord
from arborcast.topic_model.subscriptions import Peer
from tests.support.gateway_parts import GatewayParts
from tests.support.make import subscription
from tests.support.outbound import THIS_MACHINE


def test_records_must_have_room_for_bodies(tmp_path: Path) -> None:
    parts.check_sizes(load_settings(home=tmp_path))
    settings = load_settings(home=tmp_path, overrides={"gateway.max_body_bytes": 8 * 1024 * 1024})
    with pytest.raises(ConfigError, match=r"kafka\.max_record_bytes = 8388608 .* gateway\.max_body_bytes = 8388608"):
        parts.check_sizes(settings)


@pytest.fixture
def most_files() -> Iterator[int]:
    """The hard limit of open files, in a process with a low soft limit."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before, 1_024), most))
    yield most
    resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


def test_the_command_raises_its_limit_of_files_and_names_a_wrong_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], most_files: int
) -> None:
    config = tmp_path / "arborcast.toml"
    config.write_text("[gateway]\nprot = 1\n")
    assert command.main(["--config", str(config)]) == 2
    assert "gateway.prot" in capsys.readouterr().err
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most_files, most_files)


def test_a_flood_of_connections_to_an_administrator_fills_no_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, most_files: int
) -> None:
    async def run(_: argparse.Namespace) -> int:
        # Without a free file, asyncio's own loop logs a traceback for each connection that waits.
        assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most_files, most_files)
        return 3

    monkeypatch.setattr(administrator, "_run", run)
    assert administrator.main(["--key-file", str(tmp_path / "missing")]) == 3


def test_without_the_published_schemas_no_wsdl_is_served(
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
        ({"library": ""}, r"pip install 'arborcast\[mqtt\]'"),
    ],
)
def test_wrong_settings_of_the_mqtt_bridge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, str | bool], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rules.toml").write_text('[in.a]\nmqtt = "a"\ntopic = "a"\n')
    basic: dict[str, str | bool] = {"mqtt.url": "mqtt://127.0.0.1", "outbound.scope": "loopback"}
    given = {name: value for name, value in (basic | more).items() if name != "library"}
    settings = load_settings(home=tmp_path, overrides=given)
    if "library" in more:
        monkeypatch.setitem(sys.modules, "paho.mqtt.client", None)
        with pytest.raises(ConfigError, match=words):
            make_transport(settings.push, THIS_MACHINE, settings.mqtt)
    gateway = GatewayParts(outbound=policy_of(settings)).gateway
    with pytest.raises(ConfigError, match=words):
        parts.mqtt_bridge(gateway, settings, Registry())


def test_links_end_when_an_engine_leaves_its_federation() -> None:
    made, interests = GatewayParts(), PeerInterests()
    made.control.folds = [*made.control.folds, interests]
    link = subscription("peer-b", form="peer", peer=Peer("G/a", "G/b"))
    asyncio.run(made.control.commit([SubscriptionRecord(link)]))
    for _ in range(2):
        asyncio.run(close_links(made.gateway, interests))
    (_, closed) = made.control.records
    assert isinstance(closed, SubscriptionRecord)
    assert closed.subscription.terminates_ms == int(made.now.timestamp() * 1000)
