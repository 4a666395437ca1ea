"""A dispatch job takes over from one that is stopped during a batch; see also tests/integration/test_job_lease.py."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from arborcast.core.settings import KafkaSettings
from tests.support.dispatch_job import logs, subscription
from tests.support.dispatch_process import DispatchProcess
from tests.support.process import killed
from tests.support.receiver import Receiver
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.chaos, pytest.mark.kafka, pytest.mark.spark]

BACKLOG = 400


def ids(receiver: Receiver) -> set[str]:
    return {request.headers["arborcast-notification-id"] for request in receiver.requests}


def test_a_job_stopped_during_a_batch_neither_pushes_nor_parks_the_rest(
    tmp_path: Path, kafka_settings: KafkaSettings
) -> None:
    where: dict[str, str | int | float] = {
        "tables.path": str(tmp_path / "tables"),
        "push.max_notify_messages": 1,
    }
    with (
        Receiver() as receiver,
        logs(kafka_settings) as log,
        killed(DispatchProcess(tmp_path / "first", kafka_settings, where)) as first,
        killed(DispatchProcess(tmp_path / "second", kafka_settings, where)) as second,
    ):
        log.subscribe(subscription("s", receiver.url("/slow/0.02"), "a"))
        second.start()
        log.notify_many(["a"] * BACKLOG)
        receiver.wait_for(20)
        everything = [each for processes in second.processes().values() for each in processes]
        for process in everything:
            process.send_signal(signal.SIGSTOP)
        first.start()
        wait_until(lambda: len(ids(receiver)) >= BACKLOG)
        time.sleep(1)
        arrived = len(receiver.requests)
        for process in reversed(everything):
            os.kill(process.pid, signal.SIGCONT)
        assert second.wait(120) == 75
        psutil.wait_procs(everything, timeout=60)
        assert "another has taken over" in second.log(100_000)  # stack traces of Spark may follow
        # One push was in flight, since the subscription gets one at a time. The second job neither pushes nor parks
        # the other messages of the batch, which the first job would push again.
        assert len(receiver.requests) <= arrived + 1
        log.notify("a")
        receiver.wait_for(arrived + 1)
