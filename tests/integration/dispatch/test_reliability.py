"""Accepted messages are delivered despite failing receivers: the whole job over real Kafka and real HTTP."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from arborcast.dispatch.settings import JobSettings
from arborcast.topic_model.topics import SYSTEM
from tests.support.dispatch_job import Logs, Own, RunningJob, running, subscription
from tests.support.receiver import NOTIFICATION_ID, Receiver
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture(scope="module")
def job(spark: SparkSession, module_settings: JobSettings) -> Iterator[RunningJob]:
    """A job with a timeout longer than a test: a wait for a hanging receiver would not end."""
    push = dataclasses.replace(module_settings.push, total_timeout_s=300.0)
    with running(spark, dataclasses.replace(module_settings, push=push)) as started:
        yield started


def firsts(receiver: Receiver, path: str) -> list[str]:
    """The notifications at a path, in the order of their first arrivals."""
    return list(dict.fromkeys(receiver.names(path)))


def test_events_of_the_engine_are_published_on_topics_of_the_system(
    own: Own, job_logs: Logs, receiver: Receiver
) -> None:
    """The first test: the first dead letter is published at once, later ones once a minute."""
    job_logs.subscribe(subscription(own.name("operator"), receiver.url("/operator"), f"{SYSTEM}//."))
    own.subscribe("s", receiver.url("/s"), "a")
    receiver.behave("/s", "status/503")

    def published(kind: str) -> bool:
        """Whether there was such an event about this test's endpoint."""
        events = (request.body.decode() for request in receiver.received("/operator"))
        about = f"<Endpoint>{receiver.url('/s')}</Endpoint>"
        return any(f'kind="{kind}"' in event and about in event for event in events)

    own.notify("a")
    wait_until(lambda: published("breaker-opened"), "an open breaker")
    receiver.behave("/s", "")
    wait_until(lambda: published("subscription-recovered"), "the event of its recovery")
    receiver.behave("/s", "status/400")
    own.notify("a")
    wait_until(lambda: published("dead-letters-growing"), "that something was given up")
    job_logs.end(own.name("operator"))


def met(receiver: Receiver, path: str, behaviour: str) -> list[str]:
    """The notifications in the requests with this answer, in order."""
    requests = (request for request in receiver.received(path) if request.behaviour == behaviour)
    return [name for request in requests for name in request.headers[NOTIFICATION_ID].split(",")]


def test_a_hanging_push_delays_no_others_and_a_stop_loses_nothing(own: Own, receiver: Receiver) -> None:
    own.subscribe("s", receiver.url("/s"), "a")
    own.subscribe("hangs", receiver.url("/hang"), "a")
    own.subscribe("other", receiver.url("/o"), "a")
    receiver.behave("/s", "status/503")
    sent = [own.notify("a") for _ in range(10)]
    receiver.wait_for(1, "/hang")
    receiver.wait_for(1, "/s")
    # A wait for the hanging push would last five minutes.
    wait_until(lambda: firsts(receiver, "/o") == sent, "all messages at the other endpoint")
    own.job.stop()
    receiver.behave("/s", "")
    receiver.behave("/hang", "")
    own.job.start()
    sent.append(own.notify("a"))
    wait_until(lambda: set(met(receiver, "/s", "")) == set(sent), "everything arrives after the restart")
    wait_until(lambda: set(met(receiver, "/hang", "")) == set(sent), "pushes in flight are repeated")
    assert firsts(receiver, "/o") == sent
