"""What was accepted is delivered, whatever a receiver does for a while: the whole job over real Kafka and real HTTP."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dispatch.attempts import FINAL
from dispatch.redelivery.events import SYSTEM
from dispatch.runtime import JobSettings
from tests.support.dispatch_job import Logs, attempt_rows, job_settings, logs, running, subscription
from tests.support.receiver import Receiver
from topic_model.conditions import XPATH_1
from topic_model.control_log import ControlFollower
from topic_model.records import ControlRecord, SubscriptionEnded, Tombstone, suspension_key
from topic_model.settings import KafkaSettings
from topic_model.subscriptions import DeliveryPolicy, XPathFilter

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as started:
        yield started


@pytest.fixture
def settings(tmp_path: Path, kafka_settings: KafkaSettings) -> JobSettings:
    return job_settings(tmp_path, kafka_settings)


@pytest.fixture
def log(kafka_settings: KafkaSettings) -> Iterator[Logs]:
    with logs(kafka_settings) as opened:
        yield opened


def firsts(receiver: Receiver, path: str) -> list[str]:
    """The notifications that came to a path, in the order in which each came first."""
    names = (name for request in receiver.received(path) for name in ids_in(request.headers))
    return list(dict.fromkeys(names))


def ids_in(headers: dict[str, str]) -> list[str]:
    return headers["arborcast-notification-id"].split(",")


def wait_until(true: Callable[[], bool], what: str, timeout: float = 40.0) -> None:
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_failed_push_is_tried_again_with_the_same_id_and_the_next_number(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    log.subscribe(subscription("s", receiver.url("/s"), "a"))
    receiver.behave("/s", "status/500")
    with running(spark, settings):
        name = log.notify("a")
        receiver.wait_for(2, "/s")
        receiver.behave("/s", "")
        wait_until(lambda: receiver.received("/s")[-1].headers["arborcast-attempt"] >= "3", "a third attempt")
        count = len(receiver.received("/s"))
        after = log.notify("a")
        wait_until(lambda: firsts(receiver, "/s") == [name, after], "the next one is not held up")

    numbers = [int(each.headers["arborcast-attempt"]) for each in receiver.received("/s")[:count]]
    assert numbers == list(range(1, count + 1))
    assert all(ids_in(each.headers) == [name] for each in receiver.received("/s")[:count])


def test_endpoint_that_was_away_gets_everything_in_order_and_is_then_served_by_the_batches_again(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    log.subscribe(subscription("s", receiver.url("/s"), "a"), subscription("other", receiver.url("/status/202"), "a"))
    with running(spark, settings):
        sent = [log.notify("a")]
        receiver.wait_for(1, "/s")
        receiver.behave("/s", "status/503")
        for _ in range(40):
            sent.append(log.notify("a"))
        wait_until(lambda: len(firsts(receiver, "/status/202")) == 41, "the other one has everything meanwhile")
        receiver.behave("/s", "")
        before = len(receiver.received("/s"))
        for _ in range(10):
            sent.append(log.notify("a"))
        wait_until(lambda: set(sent[1:]) <= set(taken(receiver, "/s", before)), "all of them arrive")
        assert not duplicates(taken(receiver, "/s", before))

    untried = [name for name in taken(receiver, "/s", before) if name not in taken(receiver, "/s", 1, before)]
    assert untried == [name for name in sent if name in set(untried)], "first attempts in the order of acceptance"


def taken(receiver: Receiver, path: str, since: int, until: int | None = None) -> list[str]:
    return [name for request in receiver.received(path)[since:until] for name in ids_in(request.headers)]


def duplicates(names: list[str]) -> set[str]:
    return {name for name in names if names.count(name) > 1}


def test_strict_subscription_gets_nothing_before_what_came_earlier_is_settled(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    log.subscribe(subscription("s", receiver.url("/half"), "a//.", policy=DeliveryPolicy(order="strict")))
    with running(spark, settings):
        sent = [log.notify("a/b") for number in range(12)]
        wait_until(lambda: len(firsts(receiver, "/half")) == 12, "all are tried")
        wait_until(lambda: len(receiver.received("/half")) == 24, "and tried again")

    arrived = [name for request in receiver.received("/half") for name in ids_in(request.headers)]
    assert arrived == [name for name in sent for _ in range(2)], "each fails once, and is delivered before the next"


def test_hanging_receiver_costs_the_others_one_wait_at_most(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    log.subscribe(subscription("hang", receiver.url("/hang"), "a"), subscription("s", receiver.url("/s"), "a"))
    with running(spark, settings):
        first = log.notify("a")
        receiver.wait_for(1, "/hang")
        wait_until(lambda: firsts(receiver, "/s") == [first], "the first arrives")
        time.sleep(settings.retry.hot_budget_s + 1)
        for number in range(20):
            log.notify("a")
            receiver.wait_for(number + 2, "/s", timeout=10)

    latencies = [request.at for request in receiver.received("/s")[1:]]
    assert latencies[-1] - latencies[0] < 20 * settings.retry.hot_budget_s / 2, "no batch waits for it any more"


def test_receiver_that_is_gone_ends_its_subscription(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    log.subscribe(subscription("s", receiver.url("/status/410"), "a"))
    found: list[ControlRecord] = []
    follower = ControlFollower(settings.kafka, lambda record, offset: found.append(record))
    with running(spark, settings):
        log.notify("a")

        def ended() -> bool:
            follower.read_to_end(10)
            return any(isinstance(each, SubscriptionEnded) and each.reason == "gone" for each in found)

        wait_until(ended, "the control log says that it is gone")
        log.notify("a")
        log.subscribe(subscription("t", receiver.url("/t"), "a"))
        log.notify("a")
        receiver.wait_for(1, "/t")
    follower.close()

    assert len(receiver.received("/status/410")) == 1


def test_paused_subscription_gets_what_it_missed_when_it_is_resumed(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    log.subscribe(subscription("s", receiver.url("/s"), "a"), subscription("t", receiver.url("/t"), "a"))
    with running(spark, settings):
        sent = [log.notify("a")]
        receiver.wait_for(1, "/s")
        log.subscribe(subscription("s", receiver.url("/s"), "a", paused=True))
        sent += [log.notify("a") for _ in range(5)]
        wait_until(lambda: len(firsts(receiver, "/t")) == 6, "the others have them")
        assert len(firsts(receiver, "/s")) == 1
        log.subscribe(subscription("s", receiver.url("/s"), "a"))
        sent.append(log.notify("a"))
        wait_until(lambda: len(firsts(receiver, "/s")) == 7, "what it missed arrives")

    assert firsts(receiver, "/s") == sent


def test_conditions_that_cost_too_much_suspend_and_what_was_kept_unjudged_is_judged_at_the_resume(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    settings = dataclasses.replace(settings, push=dataclasses.replace(settings.push, owner_conditions_ms=2.0))
    costly = tuple(XPathFilter(XPATH_1, f"//x/@n != {number}", {}) for number in range(30))
    log.subscribe(
        subscription("operator", receiver.url("/operator"), f"{SYSTEM}//."),
        subscription("s", receiver.url("/s"), "a", content=costly, owner="mallory"),
        subscription("t", receiver.url("/t"), "a", content=(XPathFilter(XPATH_1, "@n", {}),), owner="anna"),
    )
    small = [f"<x n='{number}'/>".encode() for number in (3, 99)]
    with running(spark, settings):
        large = log.notify("a", b"<x n='99'>" + b"<y/>" * 2_400 + b"</x>")
        wait_until(
            lambda: "subscription-suspended" in "".join(each.body.decode() for each in receiver.received("/operator")),
            "that it was suspended",
        )
        sent = [large, *(log.notify("a", each) for each in small)]
        wait_until(lambda: len(firsts(receiver, "/t")) == 3, "the others have theirs")
        assert firsts(receiver, "/s") == []
        log.control(Tombstone(suspension_key("s")))
        # What passes its conditions comes; what does not, or would cost more than it may, is cancelled.
        wait_until(lambda: len(firsts(receiver, "/s")) == 1, "what it wants of what was kept")
        expected = {sent[0]: "cancelled", sent[1]: "cancelled", sent[2]: "delivered"}

        def ended() -> dict[object, object]:
            rows = attempt_rows(settings, 1)
            return {
                row["notification"]: row["state"]
                for row in rows
                if row["subscription"] == "s" and row["state"] in FINAL
            }

        wait_until(lambda: ended() == expected, "a row for each")

    assert (firsts(receiver, "/t"), firsts(receiver, "/s")) == (sent, [sent[2]])


def test_what_waits_outlives_the_job(spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver) -> None:
    log.subscribe(subscription("s", receiver.url("/s"), "a"))
    receiver.behave("/s", "status/503")
    with running(spark, settings):
        sent = [log.notify("a") for _ in range(10)]
        receiver.wait_for(1, "/s")
        time.sleep(0.5)
    receiver.behave("/s", "")
    before = len(receiver.received("/s"))
    with running(spark, settings):
        sent.append(log.notify("a"))
        wait_until(lambda: set(taken(receiver, "/s", before)) == set(sent), "everything arrives after the restart")


def test_job_stops_in_order_while_a_receiver_hangs(
    spark: SparkSession, tmp_path: Path, kafka_settings: KafkaSettings, log: Logs, receiver: Receiver
) -> None:
    settings = job_settings(tmp_path, kafka_settings, total_timeout_s=300.0)
    log.subscribe(subscription("s", receiver.url("/hang"), "a"), subscription("other", receiver.url("/o"), "a"))
    with running(spark, settings):
        name = log.notify("a")
        # Once from the batch, which does not wait for it, then from the redelivery, which would for five minutes.
        receiver.wait_for(2, "/hang")
    receiver.behave("/hang", "status/202")
    seen = len(receiver.received("/hang"))
    with running(spark, settings):
        wait_until(lambda: len(receiver.received("/hang")) > seen, "what was under way is pushed again")
    assert ids_in(receiver.received("/hang")[-1].headers) == [name]
    assert firsts(receiver, "/o") == [name]


def test_operators_are_told_on_topics_of_the_system(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    log.subscribe(
        subscription("operator", receiver.url("/operator"), f"{SYSTEM}//."), subscription("s", receiver.url("/s"), "a")
    )
    receiver.behave("/s", "status/503")

    def told() -> str:
        return "".join(request.body.decode() for request in receiver.received("/operator"))

    with running(spark, settings):
        log.notify("a")
        wait_until(lambda: 'kind="breaker-opened"' in told(), "that a breaker has opened")
        assert f"<Endpoint>{receiver.url('/s')}</Endpoint>" in told()
        receiver.behave("/s", "")
        wait_until(lambda: 'kind="subscription-recovered"' in told(), "that it has recovered")
        receiver.behave("/s", "status/400")
        log.notify("a")
        wait_until(lambda: 'kind="dead-letters-growing"' in told(), "that something was given up")
