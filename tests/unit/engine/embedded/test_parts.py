"""One part through several runs, with a real process and hours of a simulated clock; signs
of life."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from arborcast.core.telemetry.log_format import write
from arborcast.engine.embedded import questions
from arborcast.engine.embedded.parts import Part, PartSpec
from arborcast.engine.embedded.questions import Question
from arborcast.engine.embedded.state import PartState
from arborcast.engine.settings.stack import StackSettings
from tests.support.process import has_ended
from tests.support.waiting import wait_until

SETTINGS = StackSettings(start_timeout_s=120, restart_first_s=0.5)


@contextmanager
def part(
    folder: Path,
    ready: bool = True,
    code: str = "",
    report: Callable[[str], None] = lambda _words: None,
    liveness: Callable[[float], str] | None = None,
) -> Iterator[Part]:
    sleeps = (sys.executable, "-c", f"import time; {code}; time.sleep(600)")
    watched: dict[str, Any] = {"liveness": liveness, "hang_timeout_s": 0.6} if liveness else {}
    made = Part(PartSpec("a", sleeps, {}, folder, folder / "a.log", lambda: ready, **watched), SETTINGS, report)
    try:
        yield made
    finally:
        made.kill()


def start(it: Part, at: float = 0.0) -> None:
    it.step(at)
    it.step(at)
    assert state_of(it) is PartState.READY


def state_of(it: Part) -> PartState:
    return it.state


def test_failures_are_reset_after_a_long_ready_run(tmp_path: Path) -> None:
    with part(tmp_path, ready=False) as it:
        for attempt in (1, 2, 3):
            it.step(attempt * 1_000.0)
            assert it.state is PartState.STARTING
            it.step(attempt * 1_000.0 + 121)
            it.step(attempt * 1_000.0 + 122)
            assert (it.process.failures, it.restarts) == (attempt, attempt)
        assert it.status.last_exit == "was not ready within 120 s"
    with part(tmp_path) as it:
        for life, (ran, failures) in enumerate([(1, 1), (61, 1)]):
            start(it, life * 1_000.0)
            (process,) = it.members()
            process.kill()
            wait_until(partial(has_ended, process.pid))
            it.step(life * 1_000.0 + ran)
            assert it.process.failures == failures


def test_a_long_start_is_reported_with_the_reason_in_its_log(tmp_path: Path) -> None:
    line = write("human", 1.0, "warning", "dispatch", "push is started again in 1 s: chmod was not found")
    other = write("human", 2.0, "warning", "dispatch", "an endpoint fails")
    reported: list[str] = []
    with part(tmp_path, False, f"print({line!r}); print({other!r}, flush=True)", reported.append) as it:
        it.step(1_000.0)
        wait_until(lambda: "endpoint" in (tmp_path / "a.log").read_text())
        it.step(1_005.0)
        it.step(1_010.0)
    assert reported[1:] == [
        f"a: starting, {seconds} s so far; its log has: push is started again in 1 s: chmod was not found"
        for seconds in (5, 10)
    ]


def test_a_start_may_last_as_long_as_its_log_advances(tmp_path: Path) -> None:
    line = write("human", 1.0, "info", "dispatch", "reading the parked log: 5000 records are left")
    reported: list[str] = []
    with part(tmp_path, False, f"print({line!r}, flush=True)", reported.append) as it:
        it.step(1_000.0)
        wait_until(lambda: "left" in (tmp_path / "a.log").read_text())
        for at in (1_119.0, 1_121.0, 1_238.0, 1_239.0):
            it.step(at)
        assert state_of(it) is PartState.STARTING
        it.step(1_239.5)
        assert it.status.last_exit == "was not ready within 120 s"
    assert "5000 records are left" in reported[1]


def test_a_deleted_log_of_a_running_part_is_continued(tmp_path: Path) -> None:
    log = tmp_path / "log" / "a.log"
    prints = (sys.executable, "-c", "import time\nwhile True: print('line', flush=True), time.sleep(0.01)")
    it = Part(PartSpec("a", prints, {}, tmp_path, log, lambda: True), SETTINGS, lambda _words: None)
    try:
        it.step(0.0)
        wait_until(lambda: log.exists() and log.stat().st_size)
        shutil.rmtree(log.parent)

        def written() -> bool:
            it.limit_log()
            return log.stat().st_size > 0

        wait_until(written)
    finally:
        it.kill()
    assert log.read_text().startswith("line\n")


@pytest.mark.slow
def test_a_suspension_counts_little_for_the_detection_of_hangs(tmp_path: Path) -> None:
    """Suspended without an answer: the suspension counts only as a moment of the supervisor's time."""
    asked = threading.Semaphore(0)

    def silent(_deadline_s: float) -> str:
        asked.release()
        return "no answer"

    with part(tmp_path, liveness=silent) as it:
        start(it)
        it.watch(100.0)
        for _ in range(5):
            asked.acquire()
        it.watch(100.5)
        assert state_of(it) is PartState.READY
        assert it.status.silent_since
        it.watch(100.7)
        assert state_of(it) is PartState.RESTARTING
        assert it.status.hangs == it.restarts == 1


@pytest.mark.slow
def test_an_unfinished_or_failed_probe_has_no_effect(tmp_path: Path) -> None:
    deadlines: list[float] = []
    hold = threading.Event()

    def slow(deadline_s: float) -> str:
        deadlines.append(deadline_s)
        hold.wait()
        return "no answer"

    with part(tmp_path, liveness=slow) as it:
        start(it)
        it.watch(100.0)
        wait_until(lambda: deadlines)
        it.watch(1_000.0)
        assert state_of(it) is PartState.READY
        assert not it.status.silent_since
        hold.set()
        wait_until(lambda: len(deadlines) > 3)
        it.watch(1_000.0)
        assert state_of(it) is PartState.RESTARTING
    assert deadlines[0] == pytest.approx(0.15), "three probes in the time limit"
    asked = threading.Semaphore(0)

    def broken(_deadline_s: float) -> str:
        asked.release()
        raise RuntimeError("too many open files")

    with part(tmp_path, liveness=broken) as it:
        start(it)
        it.watch(0.0)
        for _ in range(4):
            asked.acquire()
        it.watch(1_000.0)
        assert state_of(it) is PartState.READY


ASKERS: dict[str, Callable[[int], Question]] = {
    "gateway": lambda port: questions.web(f"http://127.0.0.1:{port}"),
    "gateway with TLS": lambda port: questions.web(f"https://127.0.0.1:{port}"),
    "kafka": lambda port: questions.kafka(port),
}


@contextmanager
def server(answer: bytes | None) -> Iterator[int]:
    """A server that sends this answer to any request, and closes; None: the kernel accepts connections only."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4_096)
                    connection.sendall(answer or b"")

        if answer is not None:
            threading.Thread(target=serve, daemon=True).start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)


def http(status: str, body: str) -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode()


@pytest.mark.parametrize("who", ASKERS)
def test_a_process_that_closes_connections_is_alive(who: str) -> None:
    """Too many connections or an untrusted certificate: the process is alive."""
    with server(None) as port:
        assert ASKERS[who](port)(0.2) == "no answer within 0.2 s", "a connection is no answer"
    assert ASKERS[who](port)(5) == "no process listens"
    with server(b"") as port:
        assert ASKERS[who](port)(30) == ""


@pytest.mark.parametrize(
    ("who", "answer", "why"),
    [
        ("gateway", http("200 OK", "alive\n"), ""),
        ("gateway", http("503 Service Unavailable", "there are too many connections\n"), ""),
        ("gateway", http("500 Internal Server Error", "the parent of ...\n"), "the parent of ..."),
        ("gateway", b"no HTTP at all", ""),
        ("kafka", struct.pack(">iii", 8, 1, 0), ""),  # not ready yet
    ],
    ids=["200", "503", "500", "no HTTP", "kafka"],
)
def test_answers(who: str, answer: bytes, why: str) -> None:
    with server(answer) as port:
        assert ASKERS[who](port)(30) == why


def test_a_heartbeat_is_a_new_time_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "ready"
    question = questions.job(file)
    assert question(0.1) == "no heartbeat within 0.1 s"
    file.touch()
    assert question(0.1) == "no heartbeat within 0.1 s", "the file exists, but is not updated"
    answers: list[str] = []
    caller = threading.Thread(target=lambda: answers.append(question(60)))
    caller.start()

    def beat() -> bool:
        os.utime(file)
        return bool(answers)

    wait_until(beat)
    caller.join()
    assert answers == [""]
