"""kill -9 of the parts of the dispatch job, and of the broker, under load: nothing is lost.

The load is steady and comes from outside; the receiver's own record is what counts. Whatever arrives twice was under
way when something was killed: its batch had not been done.
"""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.operations.audit import audit
from arborcast.engine.embedded.kafka_broker import KafkaBroker
from tests.support.broker import settings_for
from tests.support.dispatch_process import running_job, with_suppressed_kill
from tests.support.receiver import Receiver
from tests.support.steady_load import PATHS, assert_all_arrived, counted, under_load, wait_for_more

pytestmark = [pytest.mark.long, pytest.mark.chaos, pytest.mark.kafka, pytest.mark.spark]


def assert_accounted_for(kafka: KafkaSettings, receiver: Receiver, accepted: list[str]) -> None:
    """Compare the engine's figures with those of publishers and receivers."""
    report = audit(kafka, 0, deep=True, order=True, patience_s=30)
    assert report.balanced, report.problems[:5]
    # Unacknowledged messages may be in the log.
    assert report.notifications >= len(accepted)
    assert report.matches == report.totals.matches == len(PATHS) * report.notifications
    assert report.totals.dead == report.totals.expired == report.totals.cancelled == report.totals.dropped == 0
    twice = sum(count - 1 for path in PATHS for count in counted(receiver, path).values())
    assert report.duplicates <= twice


def test_killed_python_worker_loses_nothing(tmp_path: Path, kafka_settings: KafkaSettings, receiver: Receiver) -> None:
    with running_job(tmp_path, kafka_settings) as job, under_load(kafka_settings, receiver) as load:
        receiver.wait_for(20)
        for _ in range(3):
            for worker in job.processes()["worker"]:
                with_suppressed_kill(worker)
            wait_for_more(receiver)
            time.sleep(0.5)
        accepted = load.stop()
        # A worker's batch is repeated; at this rate one holds a few dozen notifications.
        assert_all_arrived(receiver, accepted, duplicates_allowed=200)
        assert_accounted_for(kafka_settings, receiver, accepted)
        assert job.processes()["jvm"][0].is_running()


@pytest.mark.parametrize("role", ["jvm", "driver"])
def test_killed_driver_loses_nothing(
    tmp_path: Path, kafka_settings: KafkaSettings, receiver: Receiver, role: str
) -> None:
    with running_job(tmp_path, kafka_settings) as job, under_load(kafka_settings, receiver) as load:
        receiver.wait_for(50)
        family = [process for processes in job.processes().values() for process in processes]
        with_suppressed_kill(job.processes()[role][0])
        job.wait(120)
        _, alive = psutil.wait_procs(family, timeout=60)
        assert not alive, "the other processes of the job end by themselves"
        job.start()
        wait_for_more(receiver)
        accepted = load.stop()
        assert_all_arrived(receiver, accepted, duplicates_allowed=200)
        assert_accounted_for(kafka_settings, receiver, accepted)


def test_job_survives_a_broker_that_is_killed_and_comes_back(
    tmp_path: Path, own_broker: KafkaBroker, receiver: Receiver
) -> None:
    kafka = settings_for(own_broker)
    with running_job(tmp_path / "job", kafka) as job, under_load(kafka, receiver) as load:
        receiver.wait_for(50)
        own_broker.kill()
        time.sleep(3)
        own_broker.start()
        wait_for_more(receiver)
        assert job.processes()["driver"][0].is_running(), "the job itself lived through it"
        time.sleep(2)
        accepted = load.stop()
        assert_all_arrived(receiver, accepted, duplicates_allowed=400)
        assert_accounted_for(kafka, receiver, accepted)


def test_orderly_stop_under_load_sends_nothing_twice(
    tmp_path: Path, kafka_settings: KafkaSettings, receiver: Receiver
) -> None:
    with running_job(tmp_path, kafka_settings) as job, under_load(kafka_settings, receiver) as load:
        receiver.wait_for(50)
        assert job.terminate(300) == 0
        job.start()
        wait_for_more(receiver)
        accepted = load.stop()
        assert_all_arrived(receiver, accepted, duplicates_allowed=0)
        assert_accounted_for(kafka_settings, receiver, accepted)
