from __future__ import annotations

import argparse
import asyncio
import errno
import fcntl
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import uvloop

from arborcast.core.backoff import Backoff
from arborcast.core.errors import ConfigError
from arborcast.core.files import Stamp, write_atomically
from arborcast.core.telemetry.metrics import Registry
from arborcast.dispatch.delivery.transport import make_transport
from arborcast.engine.administrator import __main__ as administrator
from arborcast.engine.gateway import __main__ as command
from arborcast.engine.gateway import parts, workers
from arborcast.engine.gateway.federation import close_links
from arborcast.engine.gateway.state import GatewayState
from arborcast.engine.gateway.workers import Share, WorkerMetrics, Workers
from arborcast.engine.install import jars
from arborcast.engine.processes.errors import JarError
from arborcast.engine.settings.loading import load_settings
from arborcast.engine.settings.outbound import policy_of
from arborcast.ingest.federation.interests import PeerInterests
from arborcast.ingest.http.listening import listen_on
from arborcast.ingest.settings import GatewaySettings
from arborcast.ingest.state.changes import GatewayPositions
from arborcast.ingest.state.repeats import TABLE_BYTES
from arborcast.topic_model.records.control import SubscriptionRecord
from arborcast.topic_model.subscriptions import Peer
from tests.support.gateway_parts import GatewayParts
from tests.support.make import subscription
from tests.support.outbound import THIS_MACHINE
from tests.support.waiting import wait_until_async


async def test_an_unready_gateway_names_the_cause(tmp_path: Path) -> None:
    unreachable: dict[str, str | int | float | bool] = {
        "kafka.bootstrap_servers": "127.0.0.1:1",
        "kafka.request_timeout_s": 1,
    }
    state = GatewayState(load_settings(home=tmp_path, overrides=unreachable), None, Mock())
    opening = asyncio.create_task(state.open(Mock(), None))
    await wait_until_async(lambda: "ECONNREFUSED" in state.obstacle())
    opening.cancel()
    await state.close()


@pytest.fixture
def most_files() -> Iterator[int]:
    """The hard limit of open files, in a process with a low soft limit."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before, 1_024), most))
    yield most
    resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


def test_the_command_raises_its_limit_of_open_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], most_files: int
) -> None:
    config = tmp_path / "arborcast.toml"
    config.write_text("[gateway]\nprot = 1\n")
    assert command.main(["--config", str(config)]) == 2
    assert "gateway.prot" in capsys.readouterr().err
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most_files, most_files)


def test_several_workers_share_the_framed_port_with_no_other_gateway(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "listen_for_workers", lambda _: [])
    monkeypatch.setattr(command, "Workers", Mock(return_value=Mock(run=lambda: 0)))
    # Of a worker of another gateway. The system would give each worker a part of its connections.
    with listen_on("127.0.0.1", 0, host_by="host", port_by="port", shared=True) as others:
        port = others.getsockname()[1]
        config = tmp_path / "arborcast.toml"
        config.write_text(f"[gateway]\nport = 0\nworkers = 2\n[framed]\nport = {port}\n")
        assert command.main(["--config", str(config)]) == 2
        assert f"port {port}: Address already in use; choose another with framed.port" in capsys.readouterr().err
    assert command.main(["--config", str(config)]) == 0


def test_a_flood_of_connections_to_an_administrator_fills_no_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, most_files: int
) -> None:
    async def run(_: argparse.Namespace) -> int:
        # Without a free descriptor, asyncio's own loop logs a traceback for each queued connection.
        assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most_files, most_files)
        return 3

    monkeypatch.setattr(administrator, "_run", run)
    assert administrator.main(["--key-file", str(tmp_path / "missing")]) == 3


def test_without_the_published_schemas_no_wsdl_is_served(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    missing = JarError("the wsdl jars have not been fetched; run: arborcast fetch")
    monkeypatch.setattr(jars, "jar_paths", Mock(side_effect=missing))
    assert parts.descriptions() is None
    assert "arborcast fetch" in caplog.text


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"mqtt.rules_file": "none.toml"}, "mqtt.rules_file = '/.*/none.toml' cannot be read"),
        ({"mqtt.rules_file": "rules.toml", "outbound.https_only": True}, "must be an mqtts URL"),
        ({"mqtt.rules_file": "rules.toml", "outbound.scope": "public"}, "leads to 127.0.0.1"),
        ({"library": ""}, r"pip install 'arborcast\[mqtt\]'"),
    ],
)
def test_invalid_settings_of_the_mqtt_bridge(
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


@pytest.mark.parametrize(("way", "shown"), [("in", True), ("out", False)])
def test_a_bridge_that_holds_no_session_has_no_metric_of_it(tmp_path: Path, way: str, shown: bool) -> None:
    """Otherwise the alert of a lost session would fire for ever."""
    rules, registry = tmp_path / "rules.toml", Registry()
    rules.write_text(f'[{way}.a]\nmqtt = "a"\ntopic = "a"\n')
    given = {"mqtt.url": "mqtt://127.0.0.1", "mqtt.rules_file": str(rules), "outbound.scope": "loopback"}
    settings = load_settings(home=tmp_path, overrides=given)
    parts.mqtt_bridge(GatewayParts(outbound=policy_of(settings)).gateway, settings, registry)
    assert ("arborcast_mqtt_connected 0" in registry.text()) == shown


def test_links_end_when_an_engine_leaves_its_federation() -> None:
    made, interests = GatewayParts(), PeerInterests()
    made.control.also.append(interests)
    link = subscription("peer-b", form="peer", peer=Peer("G/a", "G/b"))
    asyncio.run(made.control.commit([SubscriptionRecord(link)]))
    for _ in range(2):
        asyncio.run(close_links(made.gateway, interests))
    (_, closed) = made.control.records
    assert isinstance(closed, SubscriptionRecord)
    assert closed.subscription.terminates_ms == int(made.now.timestamp() * 1000)


@pytest.fixture
def share(tmp_path: Path) -> Iterator[Share]:
    folder = tmp_path / "share"
    folder.mkdir()
    with socket.socket() as listener:
        yield Share(0, listener, memoryview(b""), folder)


def publish(metrics: WorkerMetrics, until: Callable[[], bool], obstacle: Callable[[], str] = lambda: "") -> None:
    """Run the task until a condition holds."""

    async def run() -> None:
        task = asyncio.get_running_loop().create_task(metrics.publish_forever(obstacle))
        while not until() and not task.done():
            await asyncio.sleep(0.001)
        if not task.done():
            task.cancel()
        await asyncio.gather(task, return_exceptions=not task.done())

    asyncio.run(run())


def test_metrics_are_read_by_the_counting_thread(share: Share) -> None:
    # In another thread, the values may change during the read.
    readers: list[int] = []

    def read() -> float:
        readers.append(threading.get_ident())
        return 0

    def obstacle() -> str:
        readers.append(threading.get_ident())
        return ""

    metrics = WorkerMetrics(share)
    metrics.gauge("waiting", "What the event loop changes.", read)
    mark = share.folder / "0.ready"
    publish(metrics, (share.folder / "0.metrics").exists, obstacle)
    assert (share.folder / "0.metrics").read_text() == metrics.text().replace('{worker="0"}', "")
    assert mark.exists()
    assert set(readers) == {threading.get_ident()}
    assert share.waits_for(2) == "worker 1 is not ready yet"
    publish(WorkerMetrics(share), lambda: not mark.exists(), lambda: "the logs are not read")
    assert not mark.exists()


def test_publishing_ends_at_a_broken_metric_or_without_a_folder(share: Share) -> None:
    broken = Mock(side_effect=RuntimeError("dictionary changed size during iteration"))
    metrics = WorkerMetrics(share)
    metrics.gauge("broken", "Nothing reads it.", broken)
    with pytest.raises(RuntimeError, match="changed size"):
        publish(metrics, lambda: False)
    shutil.rmtree(share.folder)  # as the parent does
    publish(WorkerMetrics(share), lambda: False)


def test_publishing_continues_after_a_full_disk(
    share: Share, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers, "_PUBLISH_S", 0.0)
    left = [OSError(errno.ENOSPC, "No space left on device")] * 3

    def full(path: Path, text: str, *, durable: bool) -> Stamp:
        if left:
            assert (share.folder / "0.ready").exists(), "the gateway serves nothing until each worker is ready"
            raise left.pop()
        return write_atomically(path, text, durable=durable)

    monkeypatch.setattr(workers, "write_atomically", full)
    publish(WorkerMetrics(share), (share.folder / "0.metrics").exists)
    assert [record.levelname for record in caplog.records if "No space" in record.getMessage()][:1] == ["ERROR"]


def test_a_worker_may_end_while_metrics_are_read(share: Share, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        (share.folder / f"{number}.metrics").write_text("# TYPE a gauge\na 1\n")
    read = Path.read_text

    def removed(path: Path) -> str:
        path.with_name("2.metrics").unlink(missing_ok=True)
        (share.folder / "1.metrics").unlink(missing_ok=True)
        return read(path)

    monkeypatch.setattr(Path, "read_text", removed)
    assert 'worker="1"' not in WorkerMetrics(share).text()


def test_the_shared_memory_has_no_holes(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[os.stat_result] = []

    def step(_: Workers, folder: Path) -> int:
        found.append((folder / "memory").stat())
        return 3

    monkeypatch.setattr(Workers, "_step", step)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with socket.socket() as listener:
        assert Workers(GatewaySettings(), (), [listener]).run() == 3
    (status,) = found
    assert status.st_size == TABLE_BYTES + GatewayPositions.size(1)
    assert status.st_blocks * 512 >= status.st_size


def test_folders_of_killed_gateways_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "arborcast-gateway-killed").mkdir()
    (tmp_path / "arborcast-gateway-killed" / "0.metrics").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "arborcast-gateway-link").symlink_to(tmp_path / "other")
    with workers._shared_folder() as running:
        (running / "0.metrics").touch()
        with workers._shared_folder() as second:
            expected = {running, second, tmp_path / "other", tmp_path / "arborcast-gateway-link"}
            assert set(tmp_path.iterdir()) == expected
        assert (running / "0.metrics").exists()
    assert not running.exists()


def test_a_folder_removed_before_its_lock_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    calls: list[int] = []

    def lock(descriptor: int, _operation: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            next(tmp_path.iterdir()).rmdir()

    monkeypatch.setattr(fcntl, "flock", lock)
    with workers._shared_folder() as folder:
        assert folder.exists()
    assert len(calls) == 2


def test_a_hanging_worker_is_killed_also_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers, "write_atomically", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with socket.socket() as listener:
        parent = Workers(GatewaySettings(hang_timeout_s=1), (), [listener])
        worker = parent._workers[0]
        (tmp_path / "0.beat").touch()
        hangs = [parent._hangs(worker, at, tmp_path) for at in (0.0, 0.5, 2.0)]
    assert hangs == [False, False, True]
    assert "worker 0 has made no progress" in caplog.text


def test_a_worker_without_memory_for_its_start_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    running = Mock(**{"poll.return_value": None})
    no_memory = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    monkeypatch.setattr(subprocess, "Popen", Mock(side_effect=[running, no_memory, running]))
    monkeypatch.setattr(workers, "_BACKOFF", Backoff(0.0, 0.0))
    with socket.socket() as first, socket.socket() as second:
        parent = Workers(GatewaySettings(workers=2), (), [first, second])
        assert parent._step(tmp_path) == 0
        assert [each.popen for each in parent._workers] == [running, None]
        assert "worker 1 cannot be started: Cannot allocate memory; trying again" in caplog.text
        assert parent._step(tmp_path) == 0
        assert [each.popen for each in parent._workers] == [running, running]


def test_the_error_for_full_shared_memory_names_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "new_shared_memory", Mock(side_effect=OSError(errno.ENOSPC, "No space left")))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with socket.socket() as listener, pytest.raises(ConfigError, match=r"no [\d,]+ bytes .* the disk is full"):
        Workers(GatewaySettings(), (), [listener]).run()
