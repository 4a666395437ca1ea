from __future__ import annotations

import json
import os
import pwd
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, create_autospec

import psutil
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from arborcast.core.telemetry.metrics import Registry
from arborcast.engine.embedded.state import EngineStatus, PartState, PartStatus
from arborcast.engine.monitoring.history import MetricsHistory
from arborcast.engine.monitoring.perf_counters import counters, figures_of, read_jvm
from arborcast.engine.monitoring.samples import MetricsSample, Scrape
from arborcast.engine.monitoring.stack_monitor import (
    MemoryReader,
    ProcessAccounts,
    ProcessUse,
    StackMonitor,
    role,
    uses_of,
)
from arborcast.engine.monitoring.watching import decoded
from arborcast.engine.processes.processes import ProcessId

ME = ProcessId.of_this()


def status(**parts: PartState) -> EngineStatus:
    running = {
        name: PartStatus(state, 0.0, ProcessId(2**22 + number, 0.0), restarts=number)
        for number, (name, state) in enumerate(parts.items())
    }
    return EngineStatus(ME, 0.0, {}, running)


def counted(name: str, count: int) -> bytes:
    registry = Registry()
    registry.counter(name, "Counted.").add(by=count)
    return registry.text().encode()


def test_one_page_for_all_parts(tmp_path: Path) -> None:
    pages = {
        "http://gateway/metrics": counted("arborcast_gateway_accepted_total", 7),
        "http://job/metrics": counted("arborcast_dispatch_batches_total", 3),
        "http://job/status.json": b'{"slowest_endpoints": [{"slow": 1}], "failing_endpoints": [{"down": 1}]}',
    }
    known = status(kafka=PartState.READY, gateway=PartState.READY, dispatch=PartState.RESTARTING)
    urls = {"gateway": "http://gateway", "dispatch": "http://job"}
    monitor = StackMonitor(lambda: known, urls, MetricsHistory(tmp_path, 60), 5, pages.__getitem__)
    made = {path: page.make() for path, page in monitor.pages().items()}
    readings = Scrape.of(made["/metrics"].decode())
    assert readings.sum("arborcast_gateway_accepted_total", component="gateway") == 7
    assert readings.sum("arborcast_dispatch_batches_total", component="dispatch") == 3
    assert readings.by("arborcast_part_ready", "part") == {"kafka": 1, "gateway": 1, "dispatch": 0}
    assert readings.by("arborcast_part_restarts_total", "part") == {"kafka": 0, "gateway": 1, "dispatch": 2}
    assert readings.sum("arborcast_process_memory_bytes", process="supervisor") > 1_000_000
    assert json.loads(made["/status.json"])["slowest_endpoints"] == [{"slow": 1}]
    assert json.loads(made["/status.json"])["failing_endpoints"] == [{"down": 1}]
    (sample,) = decoded(made["/recent.json"])
    assert sample.accepted == 7
    assert sample.processes["supervisor"].threads >= 1


def test_a_hanging_part_is_shown_without_a_wait(tmp_path: Path) -> None:
    silent = PartStatus(PartState.READY, 0.0, ProcessId(2**22, 0.0), 3, "did not answer", 2, time.time() - 20)
    known = EngineStatus(ME, 0.0, {}, {"gateway": silent})
    fetch = Mock()
    monitor = StackMonitor(lambda: known, {"gateway": "http://gateway"}, MetricsHistory(tmp_path, 60), 5, fetch)
    readings = Scrape.of(monitor.reading().text)
    assert readings.by("arborcast_part_ready", "part") == {"gateway": 0}
    assert readings.by("arborcast_part_restarts_total", "part") == {"gateway": 3}
    assert readings.by("arborcast_part_hangs_total", "part") == {"gateway": 2}
    assert readings.sum("arborcast_part_silent_seconds") >= 20
    assert readings.sum("arborcast_disk_free_bytes") > 0
    assert not fetch.called, "a hanging part is not scraped"


def test_cpu_of_ended_processes_still_counts() -> None:
    accounts = ProcessAccounts()
    old = ProcessUse("workers", (1, 0.0), 10.0, 100, 2, 3)
    assert accounts.update([old, ProcessUse("workers", (2, 0.0), 5.0, 50, 1, 1)])["workers"].cpu_seconds == 15
    later = accounts.update(
        [ProcessUse("workers", (2, 0.0), 6.0, 50, 1, 1), ProcessUse("workers", (1, 7.0), 1.0, 10, 1, 1)]
    )
    assert later["workers"].cpu_seconds == 17
    assert later["workers"].memory_bytes == 60
    assert later["workers"].processes == 2
    assert "workers" not in accounts.update([])


def test_memory_is_read_after_a_change_or_a_minute() -> None:
    at, size, read = [0.0], [1_000_000], []

    def reads(process: psutil.Process) -> int:
        read.append(at[0])
        return size[0] // 2

    process = create_autospec(psutil.Process, instance=True, pid=1)
    process.create_time.return_value = 7.0
    process.memory_info.side_effect = lambda: SimpleNamespace(rss=size[0])
    memory = MemoryReader(reads, lambda: at[0])
    seen = []
    for at[0], size[0] in ((1.0, 1_000_000), (6.0, 1_010_000), (11.0, 1_030_000), (66.0, 1_030_000), (71.0, 1_030_000)):
        seen.append(memory.of(process))
    assert read == [1.0, 11.0, 71.0]
    assert seen == [500_000, 500_000, 515_000, 515_000, 515_000]
    memory.keep([])
    memory.of(process)
    assert len(read) == 4


def test_processes_and_their_roles() -> None:
    names = [use.name for use in uses_of({os.getsid(0): "kafka"}, MemoryReader())]
    assert names[0] == "supervisor"
    assert "kafka" in names
    assert uses_of({}, MemoryReader())[0].identity == (os.getpid(), ME.created)
    for part, command, expected in (
        ("kafka", "/usr/bin/java -Xmx256m", "kafka"),
        ("dispatch", "/usr/bin/java org.apache.spark.deploy.SparkSubmit dispatch_stream.py", "dispatch-jvm"),
        ("dispatch", "/venv/bin/python3 /x/jobs/dispatch_stream.py --config", "dispatch-driver"),
        ("dispatch", "/venv/bin/python3 -m arborcast.dispatch.job.worker_daemon", "dispatch-workers"),
        ("dispatch", "", "dispatch"),
    ):
        assert role(part, command.split()) == expected, command


def test_pages_of_the_history(tmp_path: Path) -> None:
    history = MetricsHistory(tmp_path, 60)
    monitor = StackMonitor(lambda: status(kafka=PartState.READY), {}, history, 5)
    history.add(monitor.reading().sample)
    for name in ("recent", "history"):
        assert len(decoded(monitor.pages()[f"/{name}.json"].make())) == 1, "no time twice"
    history = MetricsHistory(tmp_path / "long", 60)
    now = time.time()
    for ago in range(100, 0, -1):
        history.add(MetricsSample(at=now - ago))
    page = StackMonitor(lambda: None, {}, history, 5).pages()["/history.json"]
    assert page.render_query is not None
    found = decoded(page.render_query({"since": str(now - 50), "points": "10"}))
    assert 8 <= len(found) <= 10
    assert found[0].at >= now - 50
    assert len(decoded(page.render_query({"since": str(now - 50)}))) in (49, 50)
    for wrong in ({"since": "yesterday"}, {"points": "0"}, {"points": "9999999"}, {"since": str(now + 60)}):
        with pytest.raises(ValueError, match=r"."):
            page.render_query(wrong)


# As OpenJDK 17 with -XX:+UseSerialGC names them.
SERIAL: Mapping[str, int | str] = {
    "java.cls.loadedClasses": 1_474,
    "java.cls.sharedLoadedClasses": 805,
    "java.cls.unloadedClasses": 4,
    "java.cls.sharedUnloadedClasses": 5,
    "java.threads.live": 6,
    "sun.gc.collector.0.invocations": 45,
    "sun.gc.collector.0.name": "Serial young collection pauses",
    "sun.gc.collector.0.time": 250_000_000,
    "sun.gc.collector.1.invocations": 21,
    "sun.gc.collector.1.name": "Serial full collection pauses",
    "sun.gc.collector.1.time": 1_500_000_000,
    "sun.gc.generation.0.capacity": 11_000_000,
    "sun.gc.generation.0.maxCapacity": 89_000_000,
    "sun.gc.generation.0.space.0.capacity": 9_000_000,
    "sun.gc.generation.0.space.0.used": 2_600_000,
    "sun.gc.generation.0.space.1.capacity": 1_000_000,
    "sun.gc.generation.0.space.1.used": 400_000,
    "sun.gc.generation.1.capacity": 22_000_000,
    "sun.gc.generation.1.maxCapacity": 179_000_000,
    "sun.gc.generation.1.space.0.capacity": 22_000_000,
    "sun.gc.generation.1.space.0.used": 12_000_000,
    "sun.gc.metaspace.used": 8_000_000,
    "sun.gc.policy.collectors": 2,
    "sun.os.hrt.frequency": 1_000_000_000,
}


def file_with(values: Mapping[str, int | str], order: str = "<", accessible: int = 1) -> bytes:
    """Such a file as HotSpot writes it, for machines of either byte order."""
    entries = b""
    for name, value in values.items():
        names = name.encode() + b"\0"
        names += bytes(-len(names) % 8)
        content = struct.pack(order + "q", value) if isinstance(value, int) else value.encode() + b"\0\0\0"
        content += bytes(-len(content) % 8)
        size, kind = (0, b"J") if isinstance(value, int) else (len(value) + 3, b"B")
        length = 20 + len(names) + len(content) + 4
        entries += struct.pack(order + "iiicBBBi", length, 24, size, kind, 0, 1, 2, 24 + len(names))
        entries += bytes(4) + names + content
    head = struct.pack(order + "BBBBiiqii", int(order == "<"), 2, 0, accessible, 0, 0, 0, 32, len(values))
    return b"\xca\xfe\xc0\xc0" + head + entries


def test_a_file_of_either_byte_order_is_read_when_it_is_complete() -> None:
    for order in "<>":
        assert counters(file_with(SERIAL, order)) == SERIAL
    with pytest.raises(ValueError, match="not readable yet"):
        counters(file_with(SERIAL, accessible=0))


@given(st.integers(min_value=0, max_value=len(file_with(SERIAL)) - 1), st.integers(min_value=1, max_value=255))
@example(at=1_548, flipped=1)  # a number of collectors beyond 2**40
def test_a_cut_or_damaged_file_is_refused_or_read(at: int, flipped: int) -> None:
    whole = file_with(SERIAL)
    for content in (whole[:at], whole[:at] + bytes([whole[at] ^ flipped]) + whole[at + 1 :]):
        try:
            figures_of(counters(content))
        except ValueError:
            continue


def test_the_file_of_a_process(tmp_path: Path) -> None:
    folder = tmp_path / f"hsperfdata_{pwd.getpwuid(os.getuid()).pw_name}"
    folder.mkdir()
    file = folder / str(os.getpid())
    assert read_jvm(os.getpid(), tmp_path) is None
    file.write_bytes(file_with(SERIAL))
    found = read_jvm(os.getpid(), tmp_path)
    assert found is not None
    assert found.classes == 2_270
    file.write_bytes(b"something else")
    assert read_jvm(os.getpid(), tmp_path) is None
    assert read_jvm(2**22, tmp_path) is None
    file.unlink()
    os.mkfifo(file)  # of another user, whose writer never comes
    assert read_jvm(os.getpid(), tmp_path) is None
