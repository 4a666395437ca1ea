"""What workers write for each other."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from arborcast.core.errors import ConfigError
from arborcast.core.files import Stamp, write_atomically
from arborcast.engine.gateway import workers
from arborcast.engine.gateway.workers import Share, WorkerMetrics, Workers
from arborcast.ingest.settings import GatewaySettings
from arborcast.ingest.state.changes import GatewayPositions
from arborcast.ingest.state.repeats import TABLE_BYTES


@pytest.fixture
def share(tmp_path: Path) -> Iterator[Share]:
    folder = tmp_path / "share"
    folder.mkdir()
    with socket.socket() as listener, mmap.mmap(-1, 1) as memory:
        yield Share(0, listener, memory, folder)


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


def test_metrics_are_read_by_the_thread_that_counts_and_a_mark_says_ready(share: Share) -> None:
    # In another one, what is read may change in the middle.
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
    publish(metrics, mark.exists, obstacle)
    assert (share.folder / "0.metrics").read_text() == metrics.text().replace('{worker="0"}', "")
    assert set(readers) == {threading.get_ident()}
    assert share.waits_for(2) == "worker 1 is not ready yet"
    publish(WorkerMetrics(share), lambda: not mark.exists(), lambda: "the logs are not read")
    assert not mark.exists()


def test_publishing_fails_with_a_broken_figure_and_ends_with_the_folder(share: Share) -> None:
    def broken() -> float:
        raise RuntimeError("dictionary changed size during iteration")

    metrics = WorkerMetrics(share)
    metrics.gauge("broken", "Nothing reads it.", broken)
    with pytest.raises(RuntimeError, match="changed size"):
        publish(metrics, lambda: False)
    shutil.rmtree(share.folder)  # as the parent does
    publish(WorkerMetrics(share), lambda: False)


def test_a_full_disk_is_waited_for(
    share: Share, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers, "_PUBLISH_S", 0.0)
    left = [OSError(errno.ENOSPC, "No space left on device")] * 3

    def full(path: Path, text: str, *, durable: bool) -> Stamp:
        if left:
            raise left.pop()
        return write_atomically(path, text, durable=durable)

    monkeypatch.setattr(workers, "write_atomically", full)
    publish(WorkerMetrics(share), (share.folder / "0.ready").exists)
    assert [record.levelname for record in caplog.records if "No space" in record.getMessage()][:1] == ["ERROR"]


def test_a_worker_may_end_while_metrics_are_read(share: Share, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        (share.folder / f"{number}.metrics").write_text("# TYPE a gauge\na 1\n")
    read = Path.read_text

    def gone(path: Path) -> str:
        path.with_name("2.metrics").unlink(missing_ok=True)
        (share.folder / "1.metrics").unlink(missing_ok=True)
        return read(path)

    monkeypatch.setattr(Path, "read_text", gone)
    assert 'worker="1"' not in WorkerMetrics(share).text()


def test_the_shared_memory_has_no_holes(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[os.stat_result] = []

    def step(_: Workers, memory: int, _folder: Path) -> int:
        found.append(os.fstat(memory))
        return 3

    monkeypatch.setattr(Workers, "_step", step)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with socket.socket() as listener:
        assert Workers(GatewaySettings(), (), [listener]).run() == 3
    (status,) = found
    assert status.st_size == TABLE_BYTES + GatewayPositions.size(1)
    assert status.st_blocks * 512 >= status.st_size


def test_a_worker_that_hangs_is_killed_on_a_full_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> Stamp:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(workers, "write_atomically", full)
    with socket.socket() as listener:
        parent = Workers(GatewaySettings(hang_timeout_s=1), (), [listener])
        worker = parent._workers[0]
        (tmp_path / "0.beat").touch()
        hangs = [parent._hangs(worker, at, tmp_path) for at in (0.0, 0.5, 2.0)]
    assert hangs == [False, False, True]
    assert "worker 0 has made no progress" in caplog.text


def test_without_space_for_the_shared_memory_the_folder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: full.open("r+b", buffering=0))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with (
        socket.socket() as listener,
        pytest.raises(ConfigError, match=r"no [\d,]+ bytes .* the disk is full"),
    ):
        Workers(GatewaySettings(), (), [listener]).run()
