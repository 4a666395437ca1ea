"""The audit over logs in a real Kafka, with records from their usual writers."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgspec
import pytest

from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs.attempts import Attempt, AttemptsLog, ErrorClass, Matched, State
from arborcast.dispatch.logs.dead_letters import letter_of
from arborcast.dispatch.logs.parked import DeadLetterLog, Delivery, ParkingLog, Place, Tries
from arborcast.dispatch.operations.audit import Report, Tally, audit
from arborcast.dispatch.operations.audit.deep import DeepAudit
from arborcast.topic_model.expressions.conditions import XPATH_1
from arborcast.topic_model.records.control import SubscriptionRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import DeliveryPolicy, Subscription, XPathFilter
from arborcast.topic_model.topics import TopicPath
from tests.support.dispatch_job import Logs, logs, subscription

pytestmark = pytest.mark.kafka

TOPIC = TopicPath("a")


class Batches:
    """Writes the records of batches. All notifications are in partition 0 of their log."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._attempts = AttemptsLog(kafka)
        self._parking, self._dead = ParkingLog(kafka), DeadLetterLog(kafka)
        self.number = 0

    def evaluate(self, control: int, first: int, counts: dict[str, int], thinned: int = 0) -> None:
        now_ms = int(time.time() * 1000)
        matched = [
            Matched(each, TOPIC, now_ms, first + place, count, (), thinned, priority=0)
            for place, (each, count) in enumerate(counts.items())
        ]
        self._attempts.add_matched(0, self.number, control, matched)
        self.number += 1
        self._attempts.settle(120)

    def row(self, notification: str, to: str, state: State = "delivered", error: ErrorClass = "") -> Attempt:
        now_ms = int(time.time() * 1000)
        made = Attempt(notification, to, TOPIC, "http://r/", 1, "p", state, now_ms, now_ms, 1.0, error)
        self._attempts.add(made)
        self._attempts.settle(120)
        return made

    def park(self, notification: str, to: str, offset: int) -> None:
        delivery = Delivery(to, Place(0, 0, offset))
        self._parking.park(delivery, Notification(notification, TOPIC, b"<x/>", 1), Tries())
        self._parking.settle(120)

    def write_dead_letter(self, row: Attempt, offset: int) -> None:
        letter = letter_of(row, Notification(row.notification, TOPIC, b"<x/>", 1))
        self._dead.write_dead_letter(Delivery(row.subscription, Place(0, 0, offset)), letter)
        self._dead.settle(120)

    def close(self) -> None:
        self._attempts.close()
        self._parking.close()
        self._dead.close()


@pytest.fixture
def batches(kafka_settings: KafkaSettings, log: Logs) -> Iterator[Batches]:
    with closing(Batches(kafka_settings)) as opened:
        yield opened


def problems(report: Report) -> list[tuple[str, str, str]]:
    return [(each.kind, each.notification, each.subscription) for each in report.problems]


def test_an_engine_is_followed_through_its_logs(kafka_settings: KafkaSettings, log: Logs, batches: Batches) -> None:
    since_ms = int(time.time() * 1000)
    only_big = (XPathFilter(XPATH_1, "/x/@big"),)
    log.subscribe(
        subscription("s1", "http://r/1", "a"),
        subscription("s2", "http://r/2", "//."),
        subscription("s3", "http://r/3", "a", content=only_big),
    )
    assert audit(kafka_settings, since_ms).balanced, "nothing was sent"

    n1, n2 = log.notify("a", b'<x big="1"/>'), log.notify("a")
    waiting = audit(kafka_settings, since_ms)
    assert (waiting.balanced, waiting.notifications, waiting.waiting) == (True, 0, 2)

    # During the audit, the batch continues and writes its results.
    batches.evaluate(3, 0, {n1: 3, n2: 2})
    early = audit(kafka_settings, since_ms, patience_s=0)
    assert {each.kind for each in early.problems} == {"unfinished"}
    finishing = threading.Timer(1.0, lambda: [batches.row(n1, each) for each in ("s1", "s2", "s3")])
    finishing.start()
    batches.row(n2, "s1", "parked")
    batches.park(n2, "s1", 1)
    batches.write_dead_letter(batches.row(n2, "s2", "dead", "client-error"), 1)
    report = audit(kafka_settings, since_ms, deep=True, order=True)
    finishing.join()
    assert report.balanced, report.problems
    assert report.totals == Tally(delivered=3, dead=1, pending=1)
    assert (report.notifications, report.matches, report.waiting) == (2, 5, 0)
    assert (report.first_attempts, report.disordered) == (5, 0)
    assert report.subscriptions["s1"] == Tally(delivered=1, pending=1)

    # Matched as of the time of each batch.
    log.end("s2")
    n3 = log.notify("a", b'<x big="1"/>')
    log.subscribe(subscription("s4", "http://r/4", "a"))
    batches.evaluate(4, 2, {n3: 2})
    batches.row(n3, "s1")
    batches.row(n3, "s2")
    confused = audit(kafka_settings, since_ms, deep=True, patience_s=0)
    assert problems(confused) == [("not-delivered", n3, "s3")], "two recipients and two deliveries, but not the same"
    assert audit(kafka_settings, since_ms, int(time.time() * 1000) - 3_600_000, patience_s=0).notifications == 0


def test_a_delivery_that_ends_during_the_audit(
    kafka_settings: KafkaSettings, log: Logs, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    since_ms, search = int(time.time() * 1000), DeepAudit._lacking
    log.subscribe(subscription("s", "http://r/", "a"))
    done, lost = log.notify("a"), log.notify("a")
    batches.evaluate(1, 0, {done: 1, lost: 1})
    for each in (done, lost):
        batches.row(each, "s", "parked")

    def drained(*arguments: Any) -> Any:
        missing = search(*arguments)
        batches.row(done, "s")
        return missing

    monkeypatch.setattr(DeepAudit, "_lacking", drained)
    report = audit(kafka_settings, since_ms, deep=True, patience_s=0)
    assert problems(report) == [("not-parked", lost, "s")]


def test_messages_omitted_by_an_interval_are_not_lost(
    kafka_settings: KafkaSettings, log: Logs, batches: Batches
) -> None:
    now_ms = int(time.time() * 1000)
    log.subscribe(subscription("s", "http://r/", "a", policy=DeliveryPolicy(interval_ms=100), created_ms=1))
    times = [0, 99, 100, 150, 250, 300]
    before, first, passed, left_out, lost, after = (log.accept("a", accepted_ms=now_ms + each) for each in times)
    batches.evaluate(1, 0, {before: 0, first: 1, passed: 0, left_out: 0, lost: 0, after: 0}, thinned=1)
    batches.row(first, "s")
    report = audit(kafka_settings, now_ms, now_ms + 60_000, deep=True, patience_s=0)
    # The predecessors of `before` are unknown; the interval of `first` ends at 199.
    assert problems(report) == [("not-delivered", lost, "s"), ("not-delivered", after, "s")]


def test_an_injected_loss_is_found_at_every_stage(kafka_settings: KafkaSettings) -> None:
    """One subscription and one notification for each stage, with one lost record; and others without records, which
    must have no finding."""
    kafka = dataclasses.replace(kafka_settings, partitions=1)
    since_ms = int(time.time() * 1000) - 1_000
    made: dict[str, str] = {}
    with logs(kafka) as log, closing(Batches(kafka)) as batches:

        def subscribe(name: str, **more: object) -> Subscription:
            subscribed = subscription(name, "http://r/", name, created_ms=since_ms - 1, **more)
            log.subscribe(subscribed)
            return subscribed

        def change(before: Subscription, **changes: object) -> None:
            log.control(SubscriptionRecord(msgspec.structs.replace(before, **changes)))

        def accept(name: str) -> None:
            made[name] = log.accept(name, accepted_ms=since_ms + 100)

        log.raw(b"\xc1", b"a")
        lost = ["row", "counted", "evaluation", "parked", "letter", "too-old"]
        for name in lost:
            subscribe(name)
            accept(name)
        # Over, ended and paused since, and made just before through another gateway: recipients.
        over = subscribe("over", terminates_ms=since_ms + 101)
        accept("over")
        change(over, terminates_ms=since_ms + 1_000)
        subscribe("ended")
        accept("ended")
        log.end("ended")
        pulled = subscribe("pulled", pull_point="p")
        accept("pulled")
        change(pulled, paused=True)
        accept("elsewhere")
        subscribe("elsewhere")
        # Over, paused and ended before, and made later: no recipients.
        revived = subscribe("over-before", terminates_ms=since_ms + 100)
        accept("over-before")
        change(revived, terminates_ms=None)
        silent = subscribe("paused-before", pull_point="p", paused=True)
        accept("paused-before")
        change(silent, paused=False)
        subscribe("ended-before")
        log.end("ended-before")
        accept("ended-before")
        accept("late")
        log.subscribe(subscription("late", "http://r/", "late", created_ms=since_ms + 100))
        # No record of the last one is missing: notifications before it were to be evaluated.
        subscribe("sound")
        accept("sound")

        belongs = [*lost, "over", "ended", "pulled", "elsewhere", "sound"]
        # Counts alone do not reveal a subscription that was removed before the count.
        uncounted = {"counted", "over", "ended", "pulled", "elsewhere"}
        counts = {name: int(name in belongs and name not in uncounted) for name in made}
        places = {name: place for place, name in enumerate(made, 1)}
        lines = list(made.items())
        gap = places["evaluation"]
        for part in (lines[: gap - 1], lines[gap:]):
            first = places[part[0][0]]
            batches.evaluate(log.position, first, {notification: counts[name] for name, notification in part})
        states: dict[str, State] = {
            "evaluation": "delivered",
            "parked": "parked",
            "letter": "dead",
            "too-old": "expired",
        }
        for name, state in states.items():
            batches.row(made[name], name, state)
        batches.row(made["sound"], "sound")

        shallow = audit(kafka, since_ms, patience_s=0)
        deep = audit(kafka, since_ms, deep=True, patience_s=0)

    assert {(each.kind, name) for each in shallow.problems for name in made if made[name] == each.notification} == {
        ("missing", "row"),
        ("unevaluated", "evaluation"),
        ("unmatched", "evaluation"),
    }
    damaged = [(each.partition, each.offset) for each in shallow.problems if each.kind == "unreadable"]
    assert damaged == [(0, 0)], "a damaged record is reported as unreadable"
    assert len(shallow.not_examined) == 3, "unexamined parts are listed"
    found = {(each.kind, each.subscription) for each in deep.problems if each.subscription}
    assert found == {
        ("not-delivered", "row"),
        *(("not-delivered", name) for name in uncounted),
        ("not-parked", "parked"),
        ("no-letter", "letter"),
        ("no-letter", "too-old"),
    }
    assert len(deep.not_examined) == 1
