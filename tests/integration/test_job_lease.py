"""Which of several dispatch jobs works on the logs, without Spark: processes that do nothing but hold the lease."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.job import lease
from arborcast.dispatch.job.lease import HOLD_S, LEASE_S, is_held
from arborcast.engine.embedded.kafka_broker import KafkaBroker
from tests.support.broker import settings_for
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka

# It says what happens to it, and at each push (there is one every 10 ms while the fence lets it) when that was.
_JOB = """
import json, os, sys, threading, time
from pathlib import Path
from arborcast.core.settings import KafkaSettings
from arborcast.core import fence
from arborcast.dispatch.job.lease import JobLease

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def end(why):
    say("end", why)
    os._exit(75)

kafka = KafkaSettings(**json.loads(sys.argv[1]))
lease = JobLease(kafka, Path(sys.argv[2]), end)
lease.start()
lease.acquire(60)
say("has it")
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
say("released")
"""


class Job:
    """One of them, in a data directory of its own."""

    def __init__(self, kafka: KafkaSettings, home: Path) -> None:
        home.mkdir(exist_ok=True)
        self.pushes_file = home / "pushes"
        self.process = subprocess.Popen(
            [sys.executable, "-c", _JOB, json.dumps(dataclasses.asdict(kafka)), str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def says(self) -> str:
        """Its next line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def pushes(self) -> list[float]:
        """When it has pushed; nothing before it did."""
        if not self.pushes_file.exists():
            return []
        return [float(line) for line in self.pushes_file.read_text().splitlines()]

    def wait_for_pushes(self, more_than: int = 0) -> None:
        """Until it has pushed more often than that."""
        wait_until(lambda: len(self.pushes()) > more_than, lambda: f"process {self.process.pid} does not push")

    def release(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.says() == "released"

    def send(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class Jobs:
    def __init__(self, kafka: KafkaSettings, folder: Path, stack: ExitStack) -> None:
        self._kafka = kafka
        self._folder = folder
        self._stack = stack

    def start(self, name: str) -> Job:
        job = Job(self._kafka, self._folder / name)
        self._stack.callback(job.close)
        return job


@pytest.fixture
def jobs(kafka_settings: KafkaSettings, tmp_path: Path) -> Iterator[Jobs]:
    with ExitStack() as stack:
        yield Jobs(kafka_settings, tmp_path, stack)


def test_one_job_works_at_a_time(jobs: Jobs, kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure_topics(kafka_settings)
    assert not is_held(kafka_settings)
    first = jobs.start("a")
    assert first.says() == "has it"
    assert is_held(kafka_settings)
    with monkeypatch.context() as behind:
        behind.setattr(time, "time", lambda clock=time.time: clock() - 3600)
        assert not is_held(kafka_settings)
        assert is_held(kafka_settings, patience_s=60), "with any clock of its host"

    second = jobs.start("b")
    said = second.says()
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
    third = jobs.start("a")
    assert third.says() == "has it"
    third.wait_for_pushes()

    third.release()
    assert not is_held(kafka_settings)
    fourth = jobs.start("b")
    assert fourth.says() == "has it", "a released lease is free"


@pytest.mark.long
def test_who_was_stopped_for_long_ends_without_another_push(jobs: Jobs) -> None:
    first = jobs.start("a")
    assert first.says() == "has it"
    first.wait_for_pushes()
    first.send(signal.SIGSTOP)
    second = jobs.start("b")
    assert second.says() == "has it", "after the time that a lease lasts"
    first_pushes = first.pushes()
    second.wait_for_pushes()
    assert second.pushes()[0] - first_pushes[-1] > HOLD_S

    first.send(signal.SIGCONT)
    said = first.says()
    assert said.startswith("end this dispatch job was silent for too long")
    assert f"process {second.process.pid} on host" in said
    assert first.process.wait(60) == 75
    # One was past the fence, perhaps, when it was stopped.
    assert len(first.pushes()) <= len(first_pushes) + 1


@pytest.mark.long
def test_pushes_wait_while_kafka_is_away_and_no_job_is_refused_for_it(own_broker: KafkaBroker, tmp_path: Path) -> None:
    with ExitStack() as stack:
        jobs = Jobs(settings_for(own_broker), tmp_path, stack)
        first = jobs.start("a")
        assert first.says() == "has it"
        own_broker.kill()
        time.sleep(LEASE_S)
        count = len(first.pushes())
        time.sleep(1)
        assert len(first.pushes()) == count
        own_broker.start()
        first.wait_for_pushes(more_than=count + 10)
