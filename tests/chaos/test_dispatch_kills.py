"""kill -9 of the broker, and an orderly stop of the job, under load; test_storm kills the parts of the job."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.operations.audit import audit
from tests.support.broker import BrokerProcess, settings_for
from tests.support.dispatch_process import running_job
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


def test_job_survives_a_broker_that_is_killed_and_comes_back(
    tmp_path: Path, own_broker: BrokerProcess, receiver: Receiver
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
