"""A worker on another host than the driver exits by itself: after its run, and when it cannot read the log of runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from arborcast.core.eventlog.topics import FEED_LOG, PROGRESS_LOG, ensure_topics
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.realtime.messages import WorkerProgress, WorkerUpdate, decode_progress, encode_feed
from tests.support.broker import BrokerProcess, records_in, settings_for

pytestmark = [pytest.mark.kafka]

RUN, TASK = 10, 3

WORKER = f"""
import sys, time
from arborcast.core import fence
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.realtime.messages import UpdateReader
from arborcast.dispatch.realtime.worker_lease import worker_lease

kafka = KafkaSettings(bootstrap_servers=sys.argv[1], prefix=sys.argv[2])
feeding = UpdateReader(kafka, {RUN}, lambda: None)
feeding.start()
with worker_lease(kafka, {RUN}, {TASK}, lambda: feeding.read_to):
    fence.wait()
    print("may push", flush=True)
    time.sleep(600)
"""


def say(kafka: KafkaSettings, run: int) -> None:
    log = LogWriter(kafka, FEED_LOG)
    log.append_encoded([encode_feed(WorkerUpdate(run, -1, 0, 0, base=b"broadcast"))])
    log.close()


@contextmanager
def worker(kafka: KafkaSettings) -> Iterator[subprocess.Popen[str]]:
    """A process, once it has a lease."""
    ensure_topics(kafka)
    say(kafka, RUN)
    arguments = [sys.executable, "-c", WORKER, kafka.bootstrap_servers, kafka.prefix]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "may push\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_worker_exits_at_the_record_of_the_end_of_its_run(kafka_settings: KafkaSettings) -> None:
    with worker(kafka_settings) as process:
        say(kafka_settings, RUN - 1)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(15)  # longer than a lease
        said = [decode_progress(record.key or b"", record.value) for record in records_in(kafka_settings, PROGRESS_LOG)]
        assert WorkerProgress(RUN, -1, -1, RUN, task=TASK, pid=process.pid, alive=True) in said
        say(kafka_settings, RUN + 1)
        assert process.wait(240) == 1


def test_a_worker_exits_when_it_cannot_read_the_log_of_runs(own_broker: BrokerProcess) -> None:
    with worker(settings_for(own_broker)) as process:
        own_broker.kill()
        try:
            assert process.wait(240) == 1
        finally:
            own_broker.start()
