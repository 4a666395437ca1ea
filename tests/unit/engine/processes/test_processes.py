"""A table of waits before restarts; resources of processes; ports in use; logs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from arborcast.core.backoff import Backoff
from arborcast.engine.processes import logfiles, processes
from arborcast.engine.processes.errors import PortInUse
from arborcast.engine.processes.logfiles import JsonLines, follow
from arborcast.engine.processes.processes import ManagedProcess, Signals, usage

WAITS = Backoff(0.5, 30.0)


@pytest.mark.parametrize(
    ("failures", "wait"), [(1, 0.5), (2, 1.0), (3, 2.0), (6, 16.0), (7, 30.0), (8, 30.0), (10**9, 30.0)]
)
def test_waits_double_up_to_the_longest(failures: int, wait: float) -> None:
    managed = ManagedProcess(WAITS)
    managed.failures = failures - 1
    assert managed.died(100.0, healthy_s=1.0) == wait
    assert not managed.is_due(99.9 + wait)
    assert managed.is_due(100.0 + wait)


@pytest.mark.parametrize(("failures", "ran", "after"), [(0, 1.0, 1), (4, 59.9, 5), (4, 60.0, 1), (4, 1e9, 1)])
def test_a_long_healthy_run_resets_the_wait(failures: int, ran: float, after: int) -> None:
    managed = ManagedProcess(WAITS)
    managed.failures = failures
    managed.died(0.0, ran)
    assert managed.failures == after


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process is charged for its ended children")
def test_resources_of_ended_children_are_counted_on_request() -> None:
    busy = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)
    me = [psutil.Process()]
    ended = os.times().children_user + os.times().children_system
    assert ended > 0.4  # in hundredths
    own = usage(me, ended_children=False).cpu_seconds
    assert usage(me).cpu_seconds >= own + ended - 0.1
    assert own <= sum(os.times()[:2]) + 0.1


def test_a_port_is_in_use_until_its_server_closes() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    with pytest.raises(PortInUse) as caught:
        processes.require_free(port, "the gateway", "--gateway-port")
    for part in (f"port {port} for the gateway is in use by ", f"(pid {os.getpid()})", "--gateway-port PORT"):
        assert part in str(caught.value)
    with socket.create_connection(("127.0.0.1", port)), server.accept()[0] as accepted:
        accepted.shutdown(socket.SHUT_RDWR)  # the side that closes first keeps the connection in TIME_WAIT
    server.close()
    processes.require_free(port, "Kafka", "--kafka-port")


def test_a_port_of_a_foreign_address_is_not_reported_as_in_use() -> None:
    with pytest.raises(PortInUse, match=r"^port 8080 for the gateway cannot be used on 192\.0\.2\.1: ") as caught:
        processes.require_free(8080, "the gateway", "--gateway-port", "192.0.2.1")
    assert "in use" not in str(caught.value)


def test_a_port_of_a_name_with_only_an_ipv6_address(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: resolve("::1", *rest, **more))
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        port = server.getsockname()[1]
        assert processes.obstacle(port, "six.test").startswith("is in use")
    assert processes.is_free(port, "six.test")


def test_free_ports_differ_and_no_outgoing_connection_takes_them() -> None:
    ports = [processes.free_port() for _ in range(200)]
    assert len(set(ports)) == 200
    assert all(map(processes.is_free, ports))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        system_ports = server.getsockname()[1], client.getsockname()[1]
    assert max(ports) < min(system_ports)


def test_an_ignored_hangup_stays_ignored_as_nohup_requires() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals().installed() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.stops == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_log_that_was_deleted_is_not_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda _: True)  # deleted a moment later
    assert not logfiles.rotate(tmp_path / "part.log", 10)


NOW = 1_767_225_600.0


def lines(*printed: str) -> list[dict[str, str]]:
    made = JsonLines("kafka")
    complete = [line for one in printed for line in made.take(one, NOW)]
    return [json.loads(line) for line in (*complete, *made.finish())]


def test_lines_have_their_time_and_level() -> None:
    own = '{"at": "2026-01-01T00:00:00.000Z", "level": "info", "part": "gateway", "message": "é ready"}'
    spark = '2026-01-01T00:00:01.000Z warn dispatch: BlockManager: a block is "away"'
    kafka = "2026-01-01T01:00:02.000+01 ERROR kafka.server.KafkaServer - cannot write"
    ours, of_spark, of_kafka = lines(own, spark, kafka)
    assert ours == json.loads(own)
    assert of_spark == {
        "at": "2026-01-01T00:00:01.000Z",
        "level": "warning",
        "part": "kafka",
        "message": 'a block is "away"',
        "logger": "BlockManager",
    }
    assert of_kafka == {
        "at": "2026-01-01T01:00:02.000+01",
        "level": "error",
        "part": "kafka",
        "message": "cannot write",
        "logger": "kafka.server.KafkaServer",
    }


def test_a_stack_trace_is_part_of_its_line_and_bounded() -> None:
    found = lines(
        "2026-01-01T00:00:01.000Z error dispatch: Utils: failed",
        "java.io.IOException: No space left on device",
        "\tat java.base/java.io.File.write(File.java:1)",
        "Caused by: java.lang.Error",
        "WARNING: Using incubator modules: jdk.incubator.vector",
        "",
        "{not json",
        '{"a":' * 100_000,
    )
    assert [one["message"] for one in found] == [
        "failed",
        "WARNING: Using incubator modules: jdk.incubator.vector",
        "{not json",
        '{"a":' * 100_000,
    ]
    assert found[0]["trace"].splitlines()[0] == "java.io.IOException: No space left on device"
    assert len(found[0]["trace"].splitlines()) == 3
    assert found[1]["at"] == "2026-01-01T00:00:00.000Z"
    (endless,) = lines("2026-01-01T00:00:01.000Z error dispatch: A: deep", *["\tat a.b"] * 100_000)
    assert len(endless["trace"]) < 10_000


def followed(log: Path, *written: bytes) -> list[dict[str, str]]:
    """The lines of a log after a part has written these bytes into its pipe."""
    source, sink = os.pipe()
    thread = follow(source, log, "part")
    with os.fdopen(sink, "wb") as pipe:
        for each in written:
            pipe.write(each)
            pipe.flush()
    thread.join(120)
    assert not thread.is_alive()
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def test_a_pipe_is_followed_to_its_last_line(tmp_path: Path) -> None:
    rest = "o \u00e9 \n\tdeeper\n".encode() + b"\xff\nlast, without an end"
    found = followed(tmp_path / "part.log", b"one\ntw", rest)
    assert [(one["message"], one.get("trace")) for one in found] == [
        ("one", None),
        ("two \u00e9 ", "\tdeeper"),
        ("\ufffd", None),
        ("last, without an end", None),
    ]


def test_a_line_without_an_end_is_written_in_parts(tmp_path: Path) -> None:
    size = 5_000_000
    found = [each["message"] for each in followed(tmp_path / "part.log", b"x" * size + b"\nlast\n")]
    assert "".join(found) == "x" * size + "last"
    assert max(map(len, found)) < 2_000_000


def test_an_unwritable_log_does_not_stop_the_part(tmp_path: Path) -> None:
    (tmp_path / "none").touch()
    assert followed(tmp_path / "none" / "part.log", b"a line\n" * 20_000) == []  # more than a pipe holds


def test_a_deleted_log_is_continued(tmp_path: Path) -> None:
    log = tmp_path / "log" / "x.log"
    log.parent.mkdir()
    with log.open("a+b", buffering=0) as writer:  # as opened by a part
        writer.write(b"old\n")
        logfiles.keep(log, writer.fileno())
        assert log.read_text() == "old\n"
        shutil.rmtree(log.parent)
        logfiles.keep(log, writer.fileno())
        assert os.fstat(writer.fileno()).st_size == 0, "the disk has the space"
        for line in (b"one\n", b"." * 200_000 + b"\n"):
            writer.write(line)
            logfiles.keep(log, writer.fileno())
        assert os.fstat(writer.fileno()).st_size == 0
        assert log.read_text() == "one\n" + "." * 200_000 + "\n"
        assert logfiles.rotate(log, 100_000)
    shutil.rmtree(log.parent)
    assert [each["message"] for each in followed(log, b"two\n")] == ["two"]


def test_a_large_log_is_rotated_and_two_older_ones_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    with log.open("ab", buffering=0) as writer:  # as opened by a part
        for number in range(5):
            assert not logfiles.rotate(log, 10)
            writer.write(b"%d%s\n" % (number, b"." * 20))
            assert logfiles.rotate(log, 10)
        writer.write(b"last\n")
    contents = {path.name: path.read_text()[0] for path in tmp_path.iterdir()}
    assert contents == {"x.log": "l", "x.log.1": "4", "x.log.2": "3"}
    assert log.read_text() == "last\n"  # no hole at its beginning


def test_following_gives_each_complete_line_once(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("before\n")
    follower = logfiles.LogTail(log)
    with log.open("a") as writer:
        writer.write("one\ntw")
        writer.flush()
        assert follower.new_lines() == ["one"]
        writer.write("o\n")
    assert follower.new_lines() == ["two"]
    assert follower.new_lines() == []
    log.write_text("new\n")
    assert follower.new_lines() == ["new"]


def test_the_tail_omits_java_stack_frames(tmp_path: Path) -> None:
    log = tmp_path / "log"
    frames = "".join(f"\tat org.example.Deep.call{number}(Deep.java:{number})\n" for number in range(40))
    log.write_text(f"java.lang.IllegalArgumentException: too small\n{frames}Caused by: x\n{frames}")
    assert logfiles.tail(log) == "java.lang.IllegalArgumentException: too small\nCaused by: x"
