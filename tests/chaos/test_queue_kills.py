"""kill -9 of job, servers and gateway under load: every request is answered or a dead letter, and a repeated request
has its number of retransmission."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from arborcast.client import Client, ClientError, Retries
from arborcast.client.listener import Listener
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.operations.audit import audit
from arborcast.topic_model.records.control import TopicPolicy, TopicRecord
from arborcast.topic_model.topics import TopicPath
from tests.support.dispatch_job import logs
from tests.support.dispatch_process import running_job
from tests.support.gateway_process import gateway_run
from tests.support.held_port import HeldPort
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.chaos, pytest.mark.kafka, pytest.mark.spark]

# Each waits for its answer, so this is the number of requests in progress.
USERS = 6

CAPACITIES = (1, 2, 1)

# Longer than all restarts.
PATIENCE_S = 600.0

SERVER = """
import os, sys, time
from arborcast.client.queues.worker import Worker

port, file, takes_s, capacity = sys.argv[1:]
out = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def handle(request):
    os.write(out, f"{request.notification_id} {request.sequence} {request.payload.decode()}\\n".encode())
    time.sleep(float(takes_s))
    return request.payload

# The test has subscribed: the worker has no broker on this machine.
with Worker(handle, int(capacity), int(port), allow="127.0.0.0/8"):
    print("ready", flush=True)
    time.sleep(100_000)
"""
"""Writes a line at the start of a request: the id, the number of the retransmission (0 for none), the payload."""


class QueueServer:
    """A server of the queue: a process at a fixed address."""

    def __init__(self, file: Path, takes_s: float, capacity: int = 1) -> None:
        self.port = HeldPort().for_life_of(self)
        self.url = f"http://127.0.0.1:{self.port}/"
        self.file = file
        self._arguments = (str(self.port), str(file), str(takes_s), str(capacity))
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> QueueServer:
        command = [sys.executable, "-c", SERVER, *self._arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "it ended"
        return self

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(120)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def begun(self) -> list[tuple[str, int, str]]:
        """The requests that it has started, in order: id, number of the retransmission, payload."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        # A kill may cut off the last line.
        parts = [line.split(" ", 2) for line in lines if line.endswith(">")]
        return [(name, int(sequence), payload) for name, sequence, payload in parts]


class Users:
    """Send requests one after the other, each with another payload."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._numbers = itertools.count(1)
        self._stop = threading.Event()
        self.answered: set[str] = set()
        self.wrong: list[str] = []

    @contextmanager
    def asking(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._ask, args=(number,), daemon=True) for number in range(USERS)]
        for each in threads:
            each.start()
        yield
        self._stop.set()
        for each in threads:
            each.join(PATIENCE_S)
            assert not each.is_alive()

    def wait_for_more(self, count: int) -> None:
        goal = len(self.answered) + count
        wait_until(lambda: len(self.answered) >= goal, f"{count} more answers", timeout_s=300)

    def _ask(self, number: int) -> None:
        # A starting gateway answers with Retry-After.
        retries = Retries(attempts=10_000, longest_s=30.0)
        # Some answers use pull points, which belong to the killed gateway.
        listener = Listener() if number % 2 else None
        if listener is not None:
            listener.start()
        with Client(self._base, retries=retries) as client:
            while not self._stop.is_set():
                payload = f"<r>{next(self._numbers)}</r>"
                try:
                    answer = client.request("jobs", payload, PATIENCE_S, listener=listener).decode()
                except (ClientError, TimeoutError) as error:
                    self.wrong.append(f"{payload}: {error!r}")
                else:
                    self.answered.add(payload)
                    if answer != payload:
                        self.wrong.append(f"{payload}: {answer}")
        if listener is not None:
            listener.stop()


@pytest.mark.parametrize("mode", ["realtime", "batch"])
def test_every_request_is_answered_after_a_kill_of_any_process(
    tmp_path: Path, kafka_settings: KafkaSettings, mode: str
) -> None:
    servers = [QueueServer(tmp_path / f"server{number}", 0.05, CAPACITIES[number]) for number in range(3)]
    settings: dict[str, str | int | float] = {
        "dispatch.mode": mode,
        "retry.first_wait_s": 0.5,
        "push.total_timeout_s": 5.0,
    }
    with (
        logs(kafka_settings) as log,
        running_job(tmp_path / "job", kafka_settings, settings) as job,
        gateway_run(tmp_path / "gateway", kafka_settings) as gateway,
    ):
        log.control(TopicRecord(TopicPath("jobs"), policy=TopicPolicy(queue=True)))
        try:
            with Client(gateway.base, retries=Retries(attempts=1_000)) as client:
                for number, server in enumerate(servers):
                    server.start()
                    client.subscribe("jobs", to=server.url, queue=CAPACITIES[number])
            users = Users(gateway.base)
            with users.asking():
                users.wait_for_more(40)
                servers[0].kill()
                users.wait_for_more(40)
                servers[0].start()
                job.kill_part("driver")
                job.start()
                users.wait_for_more(40)
                gateway.kill()
                time.sleep(1)
                gateway.start()
                users.wait_for_more(40)
                for server in servers:
                    server.kill()
                time.sleep(1)
                for server in servers:
                    server.start()
                users.wait_for_more(40)
                job.kill_part("driver")
                job.start()
                users.wait_for_more(40)
            assert users.wrong == []
            begun: defaultdict[str, list[int]] = defaultdict(list)
            done: set[str] = set()
            for server in servers:
                for name, sequence, payload in server.begun():
                    begun[name].append(sequence)
                    done.add(payload)
            assert users.answered <= done
            unnumbered = {name: sequences for name, sequences in begun.items() if sequences.count(0) > 1}
            assert not unnumbered, "done again without a number"
            assert all(0 <= sequence <= 5 for sequences in begun.values() for sequence in sequences)
            report = audit(kafka_settings, 0, deep=True, order=True, patience_s=60)
            assert report.balanced, report.problems[:5]
        finally:
            for server in servers:
                server.kill()
