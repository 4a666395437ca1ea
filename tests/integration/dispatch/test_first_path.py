"""From the logs to receivers and to a row in the table: real Kafka, real Spark, real HTTP, real Delta."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lxml import etree
from pyspark import SparkContext
from pyspark.sql import SparkSession

from dispatch.matching.bases import BroadcastBases, FileBases
from dispatch.matching.view import RoutingView, SharedView
from dispatch.runtime import JobSettings
from dispatch.tables import ATTEMPTS
from jobs.stack import ports
from tests.support.dispatch_job import Logs, attempt_rows, job_settings, logs, running, subscription
from tests.support.receiver import Receiver, refusing_url
from topic_model.conditions import XPATH_1
from topic_model.errors import InfrastructureError
from topic_model.settings import KafkaSettings
from topic_model.subscriptions import XPathFilter
from topic_model.topics import TopicPath

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

NS = {
    "s11": "http://schemas.xmlsoap.org/soap/envelope/",
    "s12": "http://www.w3.org/2003/05/soap-envelope",
    "wsnt": "http://docs.oasis-open.org/wsn/b-2",
    "wsa": "http://www.w3.org/2005/08/addressing",
}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as started:
        yield started


@pytest.fixture
def settings(tmp_path: Path, kafka_settings: KafkaSettings) -> JobSettings:
    return job_settings(tmp_path, kafka_settings)


@pytest.fixture
def log(settings: JobSettings) -> Iterator[Logs]:
    with logs(settings.kafka) as opened:
        yield opened


def ids(receiver: Receiver, path: str) -> list[str]:
    return [
        notification
        for request in receiver.received(path)
        for notification in request.headers["arborcast-notification-id"].split(",")
    ]


def wait_for_ids(receiver: Receiver, path: str, expected: int, timeout: float = 30.0) -> list[str]:
    deadline = time.monotonic() + timeout
    while len(ids(receiver, path)) < expected:
        assert time.monotonic() < deadline, f"{len(ids(receiver, path))} of {expected} arrived at {path}"
        time.sleep(0.02)
    return ids(receiver, path)


def test_notification_reaches_those_who_subscribed_and_becomes_a_row(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    log.subscribe(
        subscription("exact", receiver.url("/exact"), "{urn:t}a/b"),
        subscription("subtree", receiver.url("/subtree"), "{urn:t}a//.", soap="1.2"),
        subscription("other", receiver.url("/other"), "{urn:t}c"),
    )
    with running(spark, settings):
        sent = log.notify("{urn:t}a/b", b'<p:hello xmlns:p="urn:p">w\xc3\xb6rld</p:hello>')
        (exact,) = receiver.wait_for(1, "/exact")
        (subtree,) = receiver.wait_for(1, "/subtree")
        rows = attempt_rows(settings, 2)

    assert exact.headers["content-type"] == "text/xml; charset=utf-8"
    assert subtree.headers["content-type"].startswith("application/soap+xml")
    for request, soap, name in ((exact, "s11", "exact"), (subtree, "s12", "subtree")):
        assert request.headers["arborcast-notification-id"] == sent
        assert request.headers["arborcast-subscription"] == name
        message = etree.fromstring(request.body).find(f"{soap}:Body/wsnt:Notify/wsnt:NotificationMessage", NS)
        assert message is not None
        manager = message.findtext("wsnt:SubscriptionReference/wsa:Address", namespaces=NS) or ""
        assert manager.endswith(f"/{name}")
        topic = message.find("wsnt:Topic", NS)
        assert topic is not None
        prefix, _, path = (topic.text or "").partition(":")
        assert (topic.nsmap[prefix], path) == ("urn:t", "a/b")
        assert message.findtext("wsnt:Message/{urn:p}hello", namespaces=NS) == "wörld"
    assert not receiver.received("/other")
    assert {(row["subscription"], row["notification"], row["state"], row["status"], row["number"]) for row in rows} == {
        ("exact", sent, "delivered", 202, 1),
        ("subtree", sent, "delivered", 202, 1),
    }
    assert all(row["accepted_at"] <= row["started_at"] for row in rows)  # type: ignore[operator]


def test_subscription_takes_effect_with_the_next_notification_and_so_does_its_end(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    with running(spark, settings):
        log.subscribe(subscription("s", receiver.url("/s"), "a"))
        first = log.notify("a")
        receiver.wait_for(1, "/s")
        log.end("s")
        log.notify("a")
        log.subscribe(subscription("again", receiver.url("/again"), "b"))
        third = log.notify("b")
        receiver.wait_for(1, "/again")

    assert ids(receiver, "/s") == [first]
    assert ids(receiver, "/again") == [third]


def test_failures_are_recorded_as_what_they_were_and_hurt_nobody_else(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    with refusing_url() as refused, running(spark, settings):
        log.subscribe(
            subscription("good", receiver.url("/good"), "a"),
            subscription("failing", receiver.url("/status/500"), "a"),
            subscription("gone", receiver.url("/status/410"), "a"),
            subscription("moved", receiver.url("/redirect"), "a"),
            subscription("hanging", receiver.url("/hang"), "a"),
            subscription("dropping", receiver.url("/drop"), "a"),
            subscription("refusing", refused, "a"),
            subscription("wrong", "ftp://127.0.0.1/", "a"),
        )
        log.notify("a")
        rows = attempt_rows(settings, 8, of_batches=True)

    assert {row["subscription"]: (row["state"], row["error"], row["status"]) for row in rows} == {
        "good": ("delivered", "", 202),
        "failing": ("parked", "server-error", 500),
        "gone": ("cancelled", "client-error", 410),
        "moved": ("parked", "redirect", 307),
        "hanging": ("parked", "timeout", 0),
        "dropping": ("parked", "disconnected", 0),
        "refusing": ("parked", "connect", 0),
        "wrong": ("dead", "address", 0),
    }
    assert len(receiver.received("/good")) == 1


def test_order_is_kept_per_subscription_and_topic_and_waiting_messages_share_a_push(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    log.subscribe(
        subscription("s", receiver.url("/s"), "a//."), subscription("raw", receiver.url("/raw"), "a/x", form="raw")
    )
    sent: dict[str, list[str]] = {"a/x": [], "a/y": []}
    for number in range(200):
        topic = "a/x" if number % 3 else "a/y"
        sent[topic].append(log.notify(topic))

    with running(spark, settings):
        arrived = wait_for_ids(receiver, "/s", 200)
        raw = wait_for_ids(receiver, "/raw", len(sent["a/x"]))

    for topic in sent:
        assert [each for each in arrived if each in sent[topic]] == sent[topic]
    assert raw == sent["a/x"]
    assert len(receiver.received("/s")) < 50, "messages that wait together travel together"
    assert len(receiver.received("/raw")) == len(raw), "raw pushes carry one message each"


def test_expired_subscriptions_get_nothing_and_what_paused_ones_miss_is_kept(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    log.subscribe(
        subscription("expired", receiver.url("/expired"), "a", terminates_ms=int(time.time() * 1000) - 1),
        subscription("paused", receiver.url("/paused"), "a", paused=True),
        subscription("good", receiver.url("/good"), "a"),
    )
    with running(spark, settings):
        log.notify("a")
        receiver.wait_for(1, "/good")
        rows = attempt_rows(settings, 2)

    assert {row["subscription"]: (row["state"], row["detail"]) for row in rows} == {
        "good": ("delivered", ""),
        "paused": ("parked", "the subscription is paused"),
    }
    assert [request.path for request in receiver.requests] == ["/good"]


def test_job_goes_on_where_it_stopped(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    log.subscribe(subscription("s", receiver.url("/s"), "a"))
    with running(spark, settings):
        first = log.notify("a")
        receiver.wait_for(1, "/s")
    second = log.notify("a")
    with running(spark, settings):
        receiver.wait_for(2, "/s")
        rows = attempt_rows(settings, 2)

    assert ids(receiver, "/s") == [first, second], "nothing lost, nothing twice over an orderly stop"
    assert sorted(str(row["notification"]) for row in rows) == [first, second]


def test_start_without_kafka_says_so_instead_of_hanging(spark: SparkSession, tmp_path: Path) -> None:
    nowhere = KafkaSettings(bootstrap_servers=f"127.0.0.1:{ports.free_port()}", request_timeout_s=1.0)

    with pytest.raises(InfrastructureError, match="Kafka"), running(spark, job_settings(tmp_path, nowhere)):
        pytest.fail("the job reported ready")


def test_content_and_producer_filters_decide_behind_the_topic(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    def condition(text: str) -> XPathFilter:
        return XPathFilter(XPATH_1, text, {"o": "urn:o"})

    log.subscribe(
        subscription("all", receiver.url("/all"), "a"),
        subscription("large", receiver.url("/large"), "a", content=(condition("@total > 100"),)),
        subscription("both", receiver.url("/both"), "a", content=(condition("@total > 100"), condition("o:express"))),
        subscription("produced", receiver.url("/produced"), "a", producer=(condition("*"),)),
        subscription("never", receiver.url("/never"), "a", content=(condition("o:line[count(@n + 1) = 1]"),)),
    )
    with running(spark, settings):
        sent = [
            log.notify("a", f'<o:order xmlns:o="urn:o" total="{total}">{inside}</o:order>'.encode())
            for total, inside in ((5, ""), (500, "<o:line n='1'/>"), (900, "<o:express/>"))
        ]
        rows = attempt_rows(settings, 6)

    assert ids(receiver, "/all") == sent
    assert ids(receiver, "/large") == sent[1:]
    assert ids(receiver, "/both") == sent[2:]
    assert not receiver.received("/produced"), "the publisher said nothing of itself"
    assert not receiver.received("/never"), "no answer is no match"
    assert len(rows) == 6


def test_record_that_cannot_be_read_is_skipped(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    log.subscribe(subscription("s", receiver.url("/s"), "a"))
    with running(spark, settings):
        log.raw(b"this is not a notification")
        sent = log.notify("a")
        receiver.wait_for(1, "/s")

    assert ids(receiver, "/s") == [sent]


def matched_in_a_task(context: SparkContext, shared: SharedView) -> list[int]:
    """How many subscriptions to `a` the view has, seen from an executor."""
    topic = TopicPath("a")
    return context.parallelize([0], 1).map(lambda _: len(shared.open().view.match(topic))).collect()


@pytest.mark.parametrize("how", ["file", "broadcast"])
def test_view_is_sent_again_when_the_overlay_has_grown(
    spark: SparkSession, settings: JobSettings, receiver: Receiver, log: Logs, how: str
) -> None:
    context = spark.sparkContext
    bases = FileBases(settings.home / "bases") if how == "file" else BroadcastBases(context)
    view = RoutingView(settings.kafka, context, bases, min_overlay=3)
    first = view.refresh(10)
    assert view.refresh(10) == first, "nothing changed, nothing is sent"
    for number in range(8):
        log.subscribe(subscription(f"s{number}", receiver.url(f"/{number}"), "a"))
        shared = view.refresh(10)
        assert matched_in_a_task(context, shared) == [number + 1]
    deadline = time.monotonic() + 10
    while (base := view.refresh(10).base) == first.base:
        assert time.monotonic() < deadline, "no new base"
    shared = view.refresh(10)
    assert shared.base == base, "nothing changed, nothing is sent"
    assert matched_in_a_task(context, shared) == [8]
    view.close()


def test_table_says_what_its_columns_mean(spark: SparkSession, settings: JobSettings) -> None:
    location = ATTEMPTS.location(settings.tables, settings.home)
    ATTEMPTS.ensure(location)

    columns = spark.read.format("delta").load(location).schema

    assert [column.name for column in columns] == [column.name for column in ATTEMPTS.columns]
    assert columns["duration_ms"].metadata["comment"].endswith("[ms]")


def test_large_notification_passes(spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver) -> None:
    log.subscribe(subscription("s", receiver.url("/s"), "a"))
    payload = b"<x>" + b"y" * 3_000_000 + b"</x>"
    with running(spark, settings):
        log.notify("a", payload)
        (request,) = receiver.wait_for(1, "/s")

    assert payload in request.body
