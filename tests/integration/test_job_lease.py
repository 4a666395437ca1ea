"""Mutual exclusion of dispatch jobs by the lease, without Spark: processes that only hold the lease."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.job import lease
from arborcast.dispatch.job.lease import HOLD_S, LEASE_S, is_held
from tests.support.broker import BrokerProcess, settings_for
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka

# It prints its events, and writes the time of each push (one every 10 ms while the fence permits).
_JOB = """
import json, os, sys, threading, time
from pathlib import Path
from arborcast.core.settings import KafkaSettings
from arborcast.core import fence
from arborcast.dispatch.job.lease import JobLease

def report(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def end(why):
    report("end", why)
    os._exit(75)

kafka = KafkaSettings(**json.loads(sys.argv[1]))
lease = JobLease(kafka, Path(sys.argv[2]), end)
lease.start()
lease.acquire(60)
report("acquired")
pushes = Path(sys.argv[2]) / "pushes"

def push():
    while True:
        fence.wait()
        with pushes.open("a") as file:
            file.write(f"{fence.clock()}\\n")
        time.sleep(0.01)

threading.Thread(target=push, daemon=True).start()
sys.stdin.readline()
lease.release()
report("released")
"""


class Job:
    """One job process in a separate data directory."""

    def __init__(self, kafka: KafkaSettings, home: Path) -> None:
        home.mkdir(exist_ok=True)
        self.pushes_file = home / "pushes"
        self.process = subprocess.Popen(
            [sys.executable, "-c", _JOB, json.dumps(dataclasses.asdict(kafka)), str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def next_line(self) -> str:
        """Its next line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def pushes(self) -> list[float]:
        """The times of its pushes; empty before the first one."""
        if not self.pushes_file.exists():
            return []
        return [float(line) for line in self.pushes_file.read_text().splitlines()]

    def wait_for_pushes(self, more_than: int = 0) -> None:
        """Wait until it has pushed more often."""
        wait_until(lambda: len(self.pushes()) > more_than, lambda: f"process {self.process.pid} does not push")

    def release(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.next_line() == "released"

    def send(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


Start = Callable[[KafkaSettings, str], Job]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:
        yield lambda kafka, name: stack.enter_context(closing(Job(kafka, tmp_path / name)))


def test_one_job_works_at_a_time(start: Start, kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure_topics(kafka_settings)
    assert not is_held(kafka_settings)
    first = start(kafka_settings, "a")
    assert first.next_line() == "acquired"
    assert is_held(kafka_settings)
    with monkeypatch.context() as behind:
        behind.setattr(time, "time", lambda clock=time.time: clock() - 3600)
        assert not is_held(kafka_settings)
        assert is_held(kafka_settings, patience_s=60), "with any clock of its host"

    second = start(kafka_settings, "b")
    said = second.next_line()
    assert said.startswith("end another dispatch job works on these logs")
    assert f"process {first.process.pid} on host" in said
    assert "stop it first" in said
    assert second.process.wait(60) == 75
    assert not second.pushes_file.exists()

    # It is killed, and its host starts the next one at once.
    first.send(signal.SIGKILL)
    first.process.wait(60)
    with monkeypatch.context() as later:
        later.setattr(lease, "LEASE_S", 0)
        assert not is_held(kafka_settings, patience_s=0.1)
    third = start(kafka_settings, "a")
    assert third.next_line() == "acquired"
    third.wait_for_pushes()

    third.release()
    assert not is_held(kafka_settings)
    fourth = start(kafka_settings, "b")
    assert fourth.next_line() == "acquired", "a released lease is free"


@pytest.mark.long
def test_a_job_stopped_for_long_exits_without_another_push(start: Start, kafka_settings: KafkaSettings) -> None:
    first = start(kafka_settings, "a")
    assert first.next_line() == "acquired"
    first.wait_for_pushes()
    first.send(signal.SIGSTOP)
    second = start(kafka_settings, "b")
    assert second.next_line() == "acquired", "after the duration of a lease"
    first_pushes = first.pushes()
    second.wait_for_pushes()
    assert second.pushes()[0] - first_pushes[-1] > HOLD_S

    first.send(signal.SIGCONT)
    said = first.next_line()
    assert said.startswith("end this dispatch job was silent for too long")
    assert f"process {second.process.pid} on host" in said
    assert first.process.wait(60) == 75
    # One push may have passed the fence before the stop.
    assert len(first.pushes()) <= len(first_pushes) + 1


@pytest.mark.long
def test_pushes_wait_during_an_outage_of_kafka(start: Start, own_broker: BrokerProcess) -> None:
    first = start(settings_for(own_broker), "a")
    assert first.next_line() == "acquired"
    own_broker.kill()
    time.sleep(LEASE_S)
    count = len(first.pushes())
    time.sleep(1)
    assert len(first.pushes()) == count
    own_broker.start()
    first.wait_for_pushes(more_than=count + 10)
