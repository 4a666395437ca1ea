"""Every table, written by the job from real logs; and what a trace tells of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from dispatch.runtime import JobSettings
from dispatch.tables import (
    ATTEMPTS,
    DELIVERIES,
    ENDPOINT_HEALTH,
    NOTIFICATIONS,
    RETRIES,
    ROUTES,
    SUBSCRIPTIONS,
    TOPICS,
    TableSpec,
)
from dispatch.trace.explain import explain
from dispatch.trace.gathering import Gatherer
from jobs.reference.tables_page import EXAMPLES
from tests.support.dispatch_job import Logs, job_settings, logs, running, subscription
from tests.support.receiver import Receiver, refusing_url
from topic_model.records import TopicRecord
from topic_model.settings import KafkaSettings
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
    assert story.steps[-1].what == "taken by the dispatch"
    assert not story.notes
    assert [(each.subscription, each.outcome) for each in younger.deliveries] == [("good", "delivered")]
    assert younger.payload == "<x>2</x>"

    monkeypatch.chdir(tmp_path)
    for title, code in EXAMPLES.items():
        if "DuckDB" in title and find_spec("duckdb") is None:
            continue
        exec(compile(code, title, "exec"), {})  # noqa: S102  # the very lines of the documentation


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
