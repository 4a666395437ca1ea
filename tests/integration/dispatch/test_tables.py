"""Every table, written by the job from real logs, and the trace of the same events."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import arborcast.analysis
from arborcast.cli.reference import EXAMPLES
from arborcast.core.eventlog.scan import LogScan
from arborcast.core.eventlog.topics import PULL_LOG
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.telemetry.tracing import TracingSettings
from arborcast.dispatch.operations.trace.evidence import DeliveryExplanation
from arborcast.dispatch.operations.trace.explain import explain
from arborcast.dispatch.operations.trace.gathering import Gatherer
from arborcast.dispatch.settings import JobSettings
from arborcast.dispatch.tables import (
    ATTEMPTS,
    DELIVERIES,
    ENDPOINT_HEALTH,
    NOTIFICATIONS,
    RETRIES,
    ROUTES,
    SUBSCRIPTIONS,
    TABLES,
    TOPICS,
)
from arborcast.dispatch.tables.spec import TableSpec
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.pull import Claimed, Settled, encode
from arborcast.topic_model.topics import TopicPath
from tests.support.dispatch_job import Logs, Own, Row, RunningJob, running, wait_for_rows
from tests.support.receiver import Receiver, refusing_url
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture(scope="module")
def collector() -> Iterator[Receiver]:
    """A collector of spans."""
    with Receiver() as started:
        yield started


@pytest.fixture(scope="module")
def job(spark: SparkSession, module_settings: JobSettings, collector: Receiver) -> Iterator[RunningJob]:
    """A job that makes spans, in a folder that notebooks find."""
    home, tracing = module_settings.home / ".arborcast", TracingSettings(endpoint=collector.url("/v1/traces"))
    with running(spark, dataclasses.replace(module_settings, home=home, tracing=tracing)) as started:
        yield started


@pytest.fixture
def gatherer(job: RunningJob) -> Gatherer:
    settings = job.settings
    return Gatherer(settings.kafka, settings.tables, settings.home)


def rows(own: Own, spec: TableSpec, enough: Callable[[list[Row]], bool]) -> list[Row]:
    """The rows of this test in the table, once they suffice."""
    return wait_for_rows(own.job.settings, spec, enough, own)


def add_topics(own: Own, job_logs: Logs, *paths: str) -> None:
    job_logs.control(*(TopicRecord(TopicPath(own.topic(path))) for path in paths))


def test_tables_and_trace_have_every_event(own: Own, job_logs: Logs, receiver: Receiver, gatherer: Gatherer) -> None:
    add_topics(own, job_logs, "a", "a/b")
    with refusing_url() as refused:
        own.subscribe("good", receiver.url("/good"), "a//.")
        own.subscribe("away", refused, "a/b")
        own.subscribe("paused", receiver.url("/paused"), "a/b", paused=True)
        own.subscribe("over", receiver.url("/over"), "a/b")
        own.end("over")
        sent = own.notify("a/b", b"<x>1</x>")
        receiver.wait_for(1, "/good")

        topics = rows(own, TOPICS, lambda found: len(found) == 2)
        subscriptions = rows(
            own, SUBSCRIPTIONS, lambda found: len(found) == 4 and "ended" in {row["state"] for row in found}
        )
        routes = rows(own, ROUTES, lambda found: len(found) == 4)
        archived = rows(own, NOTIFICATIONS, lambda found: len(found) == 1)
        attempts = rows(
            own, ATTEMPTS, lambda found: {"good", "away", "paused"} == {row["subscription"] for row in found}
        )
        ended = rows(own, DELIVERIES, lambda found: len(found) == 1)
        waiting = rows(own, RETRIES, lambda found: len(found) == 2 and any(row["tries"] for row in found))
        rows(own, ENDPOINT_HEALTH, lambda found: refused in {row["endpoint"] for row in found})
        # The tables may lag, the trace does not: it is read from the logs.
        fresh = own.notify("a", b"<x>2</x>")
        receiver.wait_for(2, "/good")
        explanation = explain(gatherer.gather(sent))
        younger = explain(gatherer.gather(fresh))

    assert {row["topic"] for row in topics} == {"a", "a/b"}
    assert {row["subscription"]: (row["state"], row["reason"]) for row in subscriptions} == {
        "good": ("active", ""),
        "away": ("active", ""),
        "paused": ("paused", ""),
        "over": ("ended", "unsubscribed"),
    }
    assert {(row["topic"], row["subscription"], row["state"]) for row in routes} == {
        ("a", "good", "active"),
        ("a/b", "good", "active"),
        ("a/b", "away", "active"),
        ("a/b", "paused", "paused"),
    }
    assert [(row["notification"], row["payload"]) for row in archived] == [(sent, b"<x>1</x>")]
    assert archived[0]["accepted_at"] <= archived[0]["logged_at"] <= archived[0]["recorded_at"]
    assert {row["state"] for row in attempts} == {"delivered", "parked"}
    assert [(row["subscription"], row["state"]) for row in ended] == [("good", "delivered")]
    assert {(row["subscription"], row["notification"]) for row in waiting} == {("away", sent), ("paused", sent)}

    assert {each.subscription: each.outcome for each in explanation.deliveries} == {
        own.name("good"): "delivered",
        own.name("away"): "waiting",
        own.name("paused"): "waiting",
    }
    assert explanation.steps[-1].what == "matched by the dispatch"
    assert not explanation.notes
    assert [(each.subscription, each.outcome) for each in younger.deliveries] == [(own.name("good"), "delivered")]
    assert younger.payload == "<x>2</x>"


def test_tables_after_a_stop_and_in_notebooks(
    own: Own, job_logs: Logs, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add_topics(own, job_logs, "a")
    own.subscribe("s", receiver.url("/s"), "a")

    def all_tables_have(count: int) -> None:
        receiver.wait_for(count, "/s")
        for spec in (NOTIFICATIONS, ATTEMPTS, DELIVERIES):
            rows(own, spec, lambda found: len(found) == count)
        rows(own, SUBSCRIPTIONS, lambda found: len(found) == 1)

    own.notify("a")
    all_tables_have(1)
    own.job.stop()
    read_as_documented(own.job.settings, monkeypatch, capsys.readouterr)
    own.job.start()
    own.notify("a")
    all_tables_have(2)

    assert len(receiver.received("/s")) == 2


def read_as_documented(settings: JobSettings, monkeypatch: pytest.MonkeyPatch, printed: Callable[[], Any]) -> None:
    """Run the example of docs/tables.md in Spark."""
    monkeypatch.chdir(settings.home.parent)
    monkeypatch.setattr(arborcast.analysis.tables, "_settings", None)
    (example,) = (code for title, code in EXAMPLES.items() if "Spark" in title)
    names: dict[str, Any] = {}
    exec(compile(example, "docs/tables.md", "exec"), names)  # noqa: S102  # the very lines of the documentation
    shown = printed().out
    session: SparkSession = names["session"]
    for spec in TABLES:
        there = DeltaTable(spec.location(settings.tables, settings.home))
        if there.count():
            assert session.table(spec.name).columns == [each.name for each in spec.columns]
    for state, count in session.sql("select state, count(*) from attempts group by state").collect():
        assert re.search(rf"{state}\s*\|\s*{count}\|", shown)


TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_the_span_of_a_push_and_its_context_at_the_receiver(
    own: Own, job_logs: Logs, receiver: Receiver, collector: Receiver
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `otel` is not installed")
    own.subscribe("s", receiver.url("/in"), "a//.")
    context, topic = f"00-{TRACE}-{SPAN}-01", TopicPath(own.topic("a/b"))
    now_ms = int(time.time() * 1000)
    key, value = notifications.encode(Notification(own.name("n"), topic, b"<x/>", now_ms, traceparent=context))
    job_logs.raw(value, key)
    (pushed,) = receiver.wait_for(1, "/in")
    traceparent = pushed.headers["traceparent"]
    assert traceparent[3:35] == TRACE
    assert traceparent != context, "the context of the push, not the publisher's"
    spans = wait_until(
        lambda: [each.body for each in collector.requests if bytes.fromhex(TRACE) in each.body],
        lambda: f"{len(collector.requests)} requests, none with this trace",
    )
    for each in (SPAN, traceparent[36:52]):
        assert bytes.fromhex(each) in spans[0]
    assert b"arborcast-dispatch" in spans[0]


def test_a_trace_shows_the_fetch_from_a_pull_point(own: Own, job_logs: Logs, gatherer: Gatherer) -> None:
    add_topics(own, job_logs, "p")
    point = own.name("point")
    own.subscribe("pulls", f"urn:pull:{point}", "p", pull_point=point)
    sent = own.notify("p")

    def delivery() -> DeliveryExplanation:
        (found,) = explain(gatherer.gather(sent)).deliveries
        return found

    wait_until(lambda: delivery().why == "stored in the pull point of the subscription; not fetched yet", delivery)
    with LogScan(gatherer.kafka, PULL_LOG) as log:
        (offset,) = (each.offset for each in log.read_all() if each.value and sent.encode() in each.value)
    with closing(LogWriter(gatherer.kafka, PULL_LOG)) as writer:
        writer.append_encoded([encode(point, Claimed("c", offset, offset, 0)), encode(point, Settled("c"))])
    fetched = delivery()
    assert fetched.why == "stored in the pull point of the subscription; fetched"
    stored, step = fetched.steps
    assert (stored.what, step.what) == ("stored", "fetched")
    assert stored.at is not None
    assert step.at is not None
    assert stored.at <= step.at
