"""Receivers that accept a push and report its result later: the job, the gateway, and the client's listener."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from pyspark.sql import SparkSession

from arborcast.client import Client
from arborcast.client.later import DeferredResult
from arborcast.client.listener import Listener, ReceivedMessage
from arborcast.core.security.keyring import add_key
from arborcast.dispatch.operations.audit import audit
from arborcast.dispatch.operations.trace.explain import explain
from arborcast.dispatch.operations.trace.gathering import Gatherer
from arborcast.dispatch.settings import JobSettings
from tests.support.dispatch_job import IN_BOTH_MODES, RunningJob, running
from tests.support.gateway_process import GatewayRun, gateway_run
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark, IN_BOTH_MODES]


@pytest.fixture(scope="module")
def job(spark: SparkSession, module_settings: JobSettings) -> Iterator[RunningJob]:
    """A job with the key of results, and a time limit for them that a busy machine does not miss."""
    add_key(Path(module_settings.secrets.key_file), "k")
    push = dataclasses.replace(module_settings.push, callback_s=240.0)
    with running(spark, dataclasses.replace(module_settings, push=push)) as started:
        yield started


@pytest.fixture(scope="module")
def gateway(job: RunningJob, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRun]:
    """A gateway with the keys of the job, which verify addresses for results."""
    keys = f'[secrets]\nkey_file = "{job.settings.secrets.key_file}"\n'
    with gateway_run(tmp_path_factory.mktemp("gateway"), job.settings.kafka, more=keys) as run:
        yield run


class Patient:
    """A subscriber that takes the first push of each message for later, and handles every further one at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.taken: dict[str, DeferredResult] = {}
        self.seen: list[tuple[str, int]] = []

    def received(self, message: ReceivedMessage) -> None:
        with self._lock:
            self.seen.append((message.notification_id, message.attempt))
            if message.attempt == 1 and message.notification_id not in self.taken:
                self.taken[message.notification_id] = message.later()

    def of(self, notification: str) -> DeferredResult:
        wait_until(lambda: notification in self.taken, f"{notification} was pushed")
        return self.taken[notification]

    def attempts(self, notification: str) -> list[int]:
        return [attempt for name, attempt in self.seen if name == notification]


@contextmanager
def subscribed(gateway: GatewayRun, topic: str) -> Iterator[Patient]:
    """One message per push: several in one push have one result."""
    patient = Patient()
    with Listener(patient.received) as listener, Client(gateway.base) as client:
        subscription = client.subscribe(topic, to=listener.url, raw=True)
        yield patient
        client.unsubscribe(subscription)


def publish(gateway: GatewayRun, topic: str) -> str:
    answer = requests.post(
        f"{gateway.base}/publish/{topic}", b"<r/>", headers={"Content-Type": "text/xml"}, timeout=120
    )
    assert answer.status_code == 202, answer.text
    return answer.headers["Arborcast-Notification-Id"]


def story_of(job: RunningJob, notification: str, outcome: str) -> str:
    """The reason and all steps of the single delivery, once it has this outcome."""
    gatherer = Gatherer(job.settings.kafka, job.settings.tables, job.settings.home)

    def found() -> str:
        explanations = explain(gatherer.gather(notification)).deliveries
        return str(explanations[0]) if [each.outcome for each in explanations] == [outcome] else ""

    return wait_until(found, f"{notification} is {outcome}")


def test_delivered_failed_and_refused(job: RunningJob, gateway: GatewayRun) -> None:
    topic = "later/ends"
    with subscribed(gateway, topic) as patient:
        done, failed, refused = (publish(gateway, topic) for _ in range(3))
        for each in (done, failed, refused):
            patient.of(each)
        assert "reports the result by" in story_of(job, done, "waiting")

        patient.taken[done].delivered("printed")
        patient.taken[failed].failed("no paper")
        patient.taken[refused].refused("no such tray")

        assert "its receiver reported this after" in (explanation := story_of(job, done, "delivered"))
        assert "printed" in explanation
        assert "that it failed: no paper" in story_of(job, failed, "delivered")
        assert "refuses it: no such tray" in story_of(job, refused, "dead")
        assert [patient.attempts(each) for each in (done, failed, refused)] == [[1], [1, 2], [1]]
        report = audit(job.settings.kafka, 0, deep=True, patience_s=120)
        assert report.balanced, report.problems
