"""Every table, written by the job from real logs; and what a trace tells of it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import jobs.notebook
from dispatch.runtime import JobSettings
from dispatch.tables import (
    ATTEMPTS,
    DELIVERIES,
    ENDPOINT_HEALTH,
    NOTIFICATIONS,
    RETRIES,
    ROUTES,
    SUBSCRIPTIONS,
    TABLES,
    TOPICS,
    TableSpec,
)
from dispatch.trace.explain import explain
from dispatch.trace.gathering import Gatherer
from jobs.reference.tables_page import EXAMPLES
from tests.support.dispatch_job import Logs, job_settings, logs, running, subscription
from tests.support.receiver import Receiver, refusing_url
from topic_model.conditions import XPATH_1
from topic_model.records import TopicRecord
from topic_model.settings import KafkaSettings
from topic_model.subscriptions import DeliveryPolicy, XPathFilter
from topic_model.topics import TopicPath

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

Row = dict[str, object]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as started:
        yield started


@pytest.fixture
def settings(tmp_path: Path, kafka_settings: KafkaSettings) -> JobSettings:
    return job_settings(tmp_path / ".arborcast", kafka_settings)


@pytest.fixture
def log(settings: JobSettings) -> Iterator[Logs]:
    with logs(settings.kafka) as opened:
        yield opened


def rows(settings: JobSettings, spec: TableSpec, enough: Callable[[list[Row]], bool]) -> list[Row]:
    """The table's rows once they are enough."""
    location = spec.location(settings.tables, settings.home)
    deadline = time.monotonic() + 40
    found: list[Row] = []
    while time.monotonic() < deadline:
        if DeltaTable.is_deltatable(location):
            found = [
                # What the engine tells its operators travels as notifications, too.
                row
                for row in DeltaTable(location).to_pyarrow_table().to_pylist()
                if not str(row.get("topic", "")).startswith("{urn:arborcast}")
            ]
            if enough(found):
                return found
        time.sleep(0.1)
    raise AssertionError(f"{spec.name} has {len(found)} rows, the last ones are {found[-5:]}")


def test_every_table_says_what_happened_and_so_does_the_trace(
    spark: SparkSession,
    settings: JobSettings,
    log: Logs,
    receiver: Receiver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gatherer = Gatherer(settings.kafka, settings.tables, settings.home, settings.checkpoint("push"))
    log.control(TopicRecord(TopicPath("a")), TopicRecord(TopicPath("a/b")))
    with refusing_url() as refused, running(spark, settings):
        log.subscribe(
            subscription("good", receiver.url("/good"), "a//."),
            subscription("away", refused, "a/b"),
            subscription("paused", receiver.url("/paused"), "a/b", paused=True),
            subscription("over", receiver.url("/over"), "a/b"),
        )
        log.end("over")
        sent = log.notify("a/b", b"<x>1</x>")
        receiver.wait_for(1, "/good")

        topics = rows(settings, TOPICS, lambda found: len(found) == 2)
        subscriptions = rows(settings, SUBSCRIPTIONS, lambda found: len(found) == 4)
        routes = rows(settings, ROUTES, lambda found: len(found) == 4)
        archived = rows(settings, NOTIFICATIONS, lambda found: len(found) == 1)
        attempts = rows(
            settings, ATTEMPTS, lambda found: {"good", "away", "paused"} == {row["subscription"] for row in found}
        )
        ended = rows(settings, DELIVERIES, lambda found: len(found) == 1)
        waiting = rows(settings, RETRIES, lambda found: len(found) == 2 and any(row["tries"] for row in found))
        health = rows(settings, ENDPOINT_HEALTH, lambda found: len(found) > 0)
        # The tables may lag, the trace does not: it is asked at once.
        fresh = log.notify("a", b"<x>2</x>")
        receiver.wait_for(2, "/good")
        story = explain(gatherer.gather(sent))
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
    assert archived[0]["accepted_at"] <= archived[0]["logged_at"] <= archived[0]["recorded_at"]  # type: ignore[operator]
    assert {row["state"] for row in attempts} == {"delivered", "parked"}
    assert [(row["subscription"], row["state"]) for row in ended] == [("good", "delivered")]
    assert {(row["subscription"], row["notification"], row["payload"]) for row in waiting} == {
        ("away", sent, b"<x>1</x>"),
        ("paused", sent, b"<x>1</x>"),
    }
    assert {row["endpoint"] for row in health} == {refused}

    assert {each.subscription: each.outcome for each in story.deliveries} == {
        "good": "delivered",
        "away": "waiting",
        "paused": "waiting",
    }
    assert story.steps[-1].what == "matched by the dispatch"
    assert not story.notes
    assert [(each.subscription, each.outcome) for each in younger.deliveries] == [("good", "delivered")]
    assert younger.payload == "<x>2</x>"

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jobs.notebook.tables, "_settings", None)
    (example,) = (code for title, code in EXAMPLES.items() if "Spark" in title)
    names: dict[str, Any] = {}
    exec(compile(example, "docs/tables.md", "exec"), names)  # noqa: S102  # the very lines of the documentation
    shown = capsys.readouterr().out
    session: SparkSession = names["session"]
    for spec in TABLES:
        there = DeltaTable(spec.location(settings.tables, settings.home))
        if there.count():
            assert session.table(spec.name).columns == [each.name for each in spec.columns]
            assert session.table(spec.name).count() == there.count()
    for state, count in session.sql("select state, count(*) from attempts group by state").collect():
        assert re.search(rf"{state}\s*\|\s*{count}\|", shown)


def test_job_that_was_stopped_adds_nothing_twice(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    log.control(TopicRecord(TopicPath("a")))
    log.subscribe(subscription("s", receiver.url("/s"), "a"))
    for number in (1, 2):
        with running(spark, settings):
            log.notify("a")
            receiver.wait_for(number, "/s")
            for spec in (NOTIFICATIONS, ATTEMPTS, DELIVERIES):
                rows(settings, spec, lambda found, number=number: len(found) == number)  # type: ignore[misc]
            rows(settings, SUBSCRIPTIONS, lambda found: len(found) == 1)

    assert len(receiver.received("/s")) == 2


NAMES = [
    *("well", "paused", "pulls", "filters", "timed-out", "impatient", "forbidden"),
    *("elsewhere", "over", "late", "nobody"),
]


def test_why_each_subscription_has_it_or_has_it_not(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    gatherer = Gatherer(settings.kafka, settings.tables, settings.home, settings.checkpoint("push"))
    log.control(TopicRecord(TopicPath("a")), TopicRecord(TopicPath("a/b")))
    url, now_ms = receiver.url("/well"), int(time.time() * 1000)
    with running(spark, settings):
        log.subscribe(
            subscription("well", url, "a//."),
            subscription("paused", url, "a/b", paused=True),
            subscription("pulls", "urn:pull:p", "a/b", paused=True, pull_point="p"),
            subscription("filters", url, "a/b", content=(XPathFilter(XPATH_1, "//level > 5"),)),
            subscription("timed-out", url, "a/b", created_ms=1, terminates_ms=now_ms - 1_000),
            subscription("impatient", url, "a/b", policy=DeliveryPolicy(lifespan_ms=1)),
            subscription("forbidden", "http://10.0.0.1/", "a/b"),
            subscription("elsewhere", url, "a/c"),
            subscription("over", url, "a/b"),
        )
        log.end("over")
        sent = log.notify("a/b", b"<x><level>3</level></x>")
        receiver.wait_for(1, "/well")
        log.subscribe(subscription("late", url, "a/b", created_ms=int(time.time() * 1000)))
        rows(settings, ATTEMPTS, lambda found: len(found) == 4)
        rows(settings, SUBSCRIPTIONS, lambda found: len(found) == 10)
        known = gatherer.gather(sent)
        stories = {name: explain(gatherer.gather(sent, name), name).deliveries[0] for name in NAMES}

    assert {name: (each.outcome, each.why) for name, each in stories.items()} == {
        "well": ("delivered", "the receiver took it at attempt 1"),
        "paused": (
            "waiting",
            "it is kept until the subscription, which is paused, is resumed: the subscription is paused",
        ),
        "pulls": ("skipped", "the subscription was paused then, and for pull points nothing is kept meanwhile"),
        "filters": ("skipped", "filtered: the payload does not fulfil //level > 5"),
        "timed-out": ("skipped", stories["timed-out"].why),
        "impatient": ("expired", "it became too old: too old when read"),
        "forbidden": ("dead", stories["forbidden"].why),
        "elsewhere": (
            "no match",
            "its topic expression a/c does not select the topic a/b; a/b would, and so would a//.",
        ),
        "over": ("no match", stories["over"].why),
        "late": ("no match", stories["late"].why),
        "nobody": ("no match", "there is no such subscription, and there was none lately"),
    }
    assert stories["timed-out"].why.startswith("the subscription's time was over at ")
    assert stories["forbidden"].why.startswith("not permitted, kept as a dead letter: ")
    assert stories["over"].why.endswith("(unsubscribed)")
    assert stories["late"].why.startswith("the subscription was made later, at ")

    # Those that were to have it, as the batch has counted them; found again when the tables have long had it.
    assert known.evaluated is not None
    assert known.evaluated.subscriptions == 4
    assert gatherer._evaluated(known, known.attempts) == known.evaluated
    assert explain(known).steps[-1].what == "matched by the dispatch"
