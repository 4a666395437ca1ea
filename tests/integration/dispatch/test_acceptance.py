"""The recipients of a notification are the subscriptions that were active at its acceptance, whatever changes before
the match."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import msgspec
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from arborcast.core.eventlog.scan import LogScan
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.matching import view as view_module
from arborcast.dispatch.matching.bases import BroadcastBases, FileBase, FileBases
from arborcast.dispatch.matching.unmatched import Unmatched
from arborcast.dispatch.matching.view import RoutingView, SharedView
from arborcast.dispatch.operations.audit import audit
from arborcast.dispatch.realtime.mode_policy import Mode
from arborcast.topic_model.records.control import SubscriptionRecord, Tombstone
from arborcast.topic_model.snapshot import SteppedView
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.dispatch_job import MODES, Logs, attempt_rows, job_settings, running, subscription
from tests.support.receiver import Receiver
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka


class Steps:
    """Changes and notifications while the job is stopped, and the expected recipients."""

    def __init__(self, log: Logs, receiver: Receiver) -> None:
        self.log = log
        self.receiver = receiver
        self.now_ms = int(time.time() * 1000)
        self.expected: set[tuple[str, str, str]] = set()

    def subscribe(self, name: str, **more: object) -> Subscription:
        made = subscription(name, self.receiver.url(f"/{name}"), name, created_ms=self.now_ms - 60_000, **more)
        self.log.subscribe(made)
        return made

    def change(self, before: Subscription, **changes: object) -> Subscription:
        after = msgspec.structs.replace(before, **changes)
        self.log.control(SubscriptionRecord(after))
        return after

    def accept(self, topic: str, *outcomes: str, ago_ms: int = 30_000, again: str = "") -> str:
        """A notification on the topic named as its subscription, or a repetition for that subscription alone."""
        name = self.log.accept(topic, accepted_ms=self.now_ms - ago_ms, again=again, only=topic if again else "")
        self.expected |= {(topic, name, outcome) for outcome in outcomes}
        return name


@pytest.mark.spark
@pytest.mark.parametrize("mode", MODES)
def test_recipients_are_those_of_the_acceptance(
    spark: SparkSession, tmp_path: Path, kafka_settings: KafkaSettings, log: Logs, mode: Mode
) -> None:
    with Receiver() as receiver:
        steps = Steps(log, receiver)

        # Subscribed for a moment, and renewed at the end: the old expiry is past when the job matches.
        renewed = steps.subscribe("renewed", terminates_ms=steps.now_ms - 20_000)
        steps.accept("renewed", "delivered", ago_ms=20_001)
        steps.change(renewed, terminates_ms=steps.now_ms - 10_000)
        steps.accept("renewed", "delivered", ago_ms=19_999)
        steps.accept("renewed", "delivered", ago_ms=10_001)
        steps.accept("renewed", ago_ms=10_000)

        # Expired, then renewed within the grace time: notifications in between are not matched.
        revived = steps.subscribe("revived", terminates_ms=steps.now_ms - 20_000)
        steps.accept("revived", ago_ms=15_000)
        steps.change(revived, terminates_ms=None)
        steps.accept("revived", "delivered", ago_ms=14_000)

        pulled = steps.subscribe("pulled", pull_point="p")
        steps.accept("pulled", "delivered")
        pulled = steps.change(pulled, paused=True)
        steps.accept("pulled")
        pulled = steps.change(pulled, paused=False)
        steps.accept("pulled", "delivered")
        steps.change(pulled, paused=True)

        paused = steps.subscribe("paused")
        steps.accept("paused", "parked")
        steps.change(paused, paused=True)
        steps.accept("paused", "parked")

        steps.subscribe("ended")
        steps.accept("ended", "cancelled")
        log.end("ended")
        log.control(Tombstone("sub:ended"))
        steps.accept("ended")

        steps.accept("late", ago_ms=80_000)
        current = steps.accept("late", ago_ms=70_000)
        steps.subscribe("late")
        steps.accept("late", "delivered", again=current)
        steps.accept("late", "delivered")

        settings = job_settings(tmp_path, kafka_settings, mode)
        with running(spark, settings):
            rows = attempt_rows(settings, len(steps.expected))
            # At run time: the end comes before the batch, or after it.
            log.subscribe(subscription("brief", receiver.url("/brief"), "brief"))
            brief = log.accept("brief")
            log.end("brief")
            rows = attempt_rows(settings, len(steps.expected) + 1)
            report = audit(kafka_settings, steps.now_ms - 120_000, deep=True, patience_s=120)
        pushed = {path: len(receiver.received(path)) for path in ("/pulled", "/paused", "/ended")}

    found = {(row["subscription"], row["notification"], row["state"]) for row in rows}
    assert {each for each in found if each[0] != "brief"} == steps.expected
    assert {(name, state in ("cancelled", "delivered")) for to, name, state in found if to == "brief"} == {
        (brief, True)
    }
    assert pushed == {"/pulled": 0, "/paused": 0, "/ended": 0}
    assert report.balanced, report.problems


def test_the_oldest_unmatched_position_follows_the_batches(kafka_settings: KafkaSettings, log: Logs) -> None:
    """A job that starts drops changes from before its first unmatched notification."""
    matched: dict[int, int] = {}
    unmatched = Unmatched(kafka_settings, lambda: matched)
    log.subscribe(*(subscription(f"s{number}", "http://r/", "a") for number in range(5)))
    assert unmatched.oldest() == 0, "recent changes may be needed"
    for control in (2, 4):
        log.accept("a", control=control)
    # Nothing is newer than all changes: the seconds of transit are in the future.
    far = Unmatched(kafka_settings, lambda: matched, transit_ms=-60_000)
    assert far.oldest() == 2
    with LogScan(kafka_settings, "notifications") as reading:
        (partition,) = (each for each, end in reading.ends().items() if end)
    matched = {partition: 1}
    assert far.oldest() == 4
    matched = {partition: 2}
    assert far.oldest() == 5
    far.start()
    assert wait_until(far.take) == 5


NO_SPARK: Any = SimpleNamespace(broadcast=lambda value: SimpleNamespace(value=value, destroy=lambda: None))
"""Broadcasts without a receiver."""


def test_changes_before_the_oldest_unmatched_one_are_dropped(
    tmp_path: Path, kafka_settings: KafkaSettings, log: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_module, "_LONG_PAST", 5)
    monkeypatch.setattr(view_module, "_CHECK_S", 0)
    unmatched, position = mock.Mock(), 4
    unmatched.oldest = lambda: position
    unmatched.take = lambda: position if unmatched.start.called else None
    with closing(RoutingView(kafka_settings, NO_SPARK, FileBases(tmp_path / "bases"), unmatched=unmatched)) as view:

        def remembered() -> list[int]:
            changed = view.refresh(120).changed
            return [] if changed is None else [each.position for each in changed.value.past.recent(0).changes]

        log.subscribe(*(subscription(f"s{number}", "http://r/", "a") for number in range(8)))
        assert remembered() == [4, 5, 6, 7], "of a day only those that may be needed"
        unmatched.start.assert_not_called()
        log.subscribe(subscription("s8", "http://r/", "a"), subscription("s9", "http://r/", "a"))
        assert remembered() == [4, 5, 6, 7, 8, 9]
        position = 7
        log.subscribe(subscription("s10", "http://r/", "a"))
        assert remembered() == [4, 5, 6, 7, 8, 9, 10], "callers do not wait for the search"
        unmatched.start.assert_called_once()
        log.subscribe(subscription("s11", "http://r/", "a"))
        assert remembered() == [7, 8, 9, 10, 11]


def test_a_follower_in_steps_keeps_its_base(tmp_path: Path, kafka_settings: KafkaSettings, log: Logs) -> None:
    with closing(RoutingView(kafka_settings, NO_SPARK, FileBases(tmp_path / "bases"), min_overlay=3)) as view:
        first = view.advance(120, snapshot=True).base
        assert first is not None
        stepped = SteppedView(first.open())
        for number in range(20):
            log.subscribe(subscription(f"s{number}", "http://r/", "a"))
            advance = view.advance(120, snapshot=False)
            assert advance.base is None
            for step in advance.steps:
                stepped.apply(step)
            assert len(stepped.match(TopicPath("a"))) == number + 1
        assert not view.is_short(past=19)
        wait_until(lambda: view.is_short(past=20), "no new base")
        advance = view.advance(120, snapshot=True)
        assert advance.base not in (None, first)
        assert sum(step.overlay.size for step in advance.steps) == 0, "all changes are in the base"
        assert not Path(cast(FileBase, first).file).exists()


def matched_in_a_task(context: SparkContext, shared: SharedView) -> list[int]:
    """The number of subscriptions to `a` in the view of an executor."""
    topic = TopicPath("a")
    return context.parallelize([0], 1).map(lambda _: len(shared.open().view.match(topic))).collect()


@pytest.mark.spark
def test_view_is_sent_again_when_the_overlay_has_grown(
    spark: SparkSession, kafka_settings: KafkaSettings, log: Logs
) -> None:
    """As to executors on other hosts, which cannot read the files of bases."""
    context = spark.sparkContext
    view = RoutingView(kafka_settings, context, BroadcastBases(context), min_overlay=3)
    first = view.refresh(120)
    assert view.refresh(120) == first, "sent without a change"
    for number in range(8):
        log.subscribe(subscription(f"s{number}", "http://r/", "a"))
        shared = view.refresh(120)
        assert matched_in_a_task(context, shared) == [number + 1]
    base = wait_until(lambda: (now := view.refresh(120).base) != first.base and now, "a new base")
    shared = view.refresh(120)
    assert shared.base == base, "sent without a change"
    assert matched_in_a_task(context, shared) == [8]
    view.close()
