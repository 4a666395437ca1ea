"""Accepted messages are delivered despite failing receivers: the whole job over real Kafka and real HTTP."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from arborcast.dispatch.logs.attempts import FINAL
from arborcast.dispatch.settings import JobSettings
from arborcast.topic_model.expressions.conditions import XPATH_1
from arborcast.topic_model.records.control import Tombstone
from arborcast.topic_model.subscriptions import XPathFilter
from arborcast.topic_model.topics import SYSTEM
from tests.support.dispatch_job import Logs, Own, RunningJob, running, subscription
from tests.support.receiver import Receiver
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture(scope="module")
def job(spark: SparkSession, module_settings: JobSettings) -> Iterator[RunningJob]:
    """A job with a timeout longer than a test: a wait for a hanging receiver would not end."""
    # A limit that thirty conditions on a large message exceed.
    push = dataclasses.replace(module_settings.push, total_timeout_s=300.0, owner_conditions_ms=2.0)
    with running(spark, dataclasses.replace(module_settings, push=push)) as started:
        yield started


def firsts(receiver: Receiver, path: str) -> list[str]:
    """The notifications at a path, in the order of their first arrivals."""
    return list(dict.fromkeys(receiver.names(path)))


def ids_in(headers: dict[str, str]) -> list[str]:
    return headers["arborcast-notification-id"].split(",")


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


def test_a_failed_push_is_retried_with_its_id_and_next_attempt(own: Own, receiver: Receiver) -> None:
    own.subscribe("s", receiver.url("/s"), "a")
    receiver.behave("/s", "status/500")
    name = own.notify("a")
    receiver.wait_for(2, "/s")
    receiver.behave("/s", "")
    wait_until(lambda: int(receiver.received("/s")[-1].headers["arborcast-attempt"]) >= 3, "a third attempt")
    count = len(receiver.received("/s"))
    after = own.notify("a")
    wait_until(lambda: firsts(receiver, "/s") == [name, after], "the next one is not held up")

    numbers = [int(each.headers["arborcast-attempt"]) for each in receiver.received("/s")[:count]]
    assert numbers == list(range(1, count + 1))
    assert all(ids_in(each.headers) == [name] for each in receiver.received("/s")[:count])


def test_a_recovered_endpoint_gets_all_in_order_then_batches(own: Own, receiver: Receiver) -> None:
    own.subscribe("s", receiver.url("/s"), "a")
    own.subscribe("other", receiver.url("/status/202"), "a")
    sent = [own.notify("a")]
    receiver.wait_for(1, "/s")
    receiver.behave("/s", "status/503")
    for _ in range(40):
        sent.append(own.notify("a"))
    wait_until(lambda: len(firsts(receiver, "/status/202")) == 41, "all messages at the other endpoint")
    receiver.behave("/s", "")
    for _ in range(10):
        sent.append(own.notify("a"))
    wait_until(lambda: set(sent[1:]) <= set(met(receiver, "/s", "")), "all messages")
    arrived, failed = met(receiver, "/s", ""), set(met(receiver, "/s", "status/503"))
    assert not duplicates(arrived)

    untried = [name for name in arrived if name not in failed]
    assert untried == [name for name in sent if name in set(untried)], "first attempts in the order of acceptance"


def met(receiver: Receiver, path: str, behaviour: str) -> list[str]:
    """The notifications in the requests with this answer, in order."""
    requests = (request for request in receiver.received(path) if request.behaviour == behaviour)
    return [name for request in requests for name in ids_in(request.headers)]


def duplicates(names: list[str]) -> set[str]:
    return {name for name in names if names.count(name) > 1}


def test_costly_conditions_suspend_and_apply_after_the_resume(own: Own, job_logs: Logs, receiver: Receiver) -> None:
    costly = tuple(XPathFilter(XPATH_1, f"//x/@n != {number}", {}) for number in range(30))
    job_logs.subscribe(subscription(own.name("operator"), receiver.url("/operator"), f"{SYSTEM}//."))
    own.subscribe("s", receiver.url("/s"), "a", content=costly, owner="mallory")
    own.subscribe("t", receiver.url("/t"), "a", content=(XPathFilter(XPATH_1, "@n", {}),), owner="anna")
    small = [f"<x n='{number}'/>".encode() for number in (3, 99)]
    large = own.notify("a", b"<x n='99'>" + b"<y/>" * 2_400 + b"</x>")
    wait_until(
        lambda: "subscription-suspended" in "".join(each.body.decode() for each in receiver.received("/operator")),
        "the event of its suspension",
    )
    sent = [large, *(own.notify("a", each) for each in small)]
    wait_until(lambda: len(firsts(receiver, "/t")) == 3, "the other subscription's messages")
    assert firsts(receiver, "/s") == []
    job_logs.control(Tombstone.of("susp", own.name("s")))
    # Matching messages are delivered; others, and those that would exceed the limit, are cancelled.
    wait_until(lambda: len(firsts(receiver, "/s")) == 1, "the matching one of the kept messages")
    expected = {sent[0]: "cancelled", sent[1]: "cancelled", sent[2]: "delivered"}

    def ended() -> dict[object, object]:
        mine = [row for row in own.attempts(1) if row["subscription"] == "s" and row["state"] in FINAL]
        return {row["notification"]: row["state"] for row in mine}

    wait_until(lambda: ended() == expected, "a row for each")
    job_logs.end(own.name("operator"))

    assert (firsts(receiver, "/t"), firsts(receiver, "/s")) == (sent, [sent[2]])


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
