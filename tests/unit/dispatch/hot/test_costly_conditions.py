"""Subscriptions whose conditions cost too much, in a worker and in the driver."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.hot.batch_outcomes import BatchOutcomes
from arborcast.dispatch.logs.attempts import Matched
from arborcast.dispatch.logs.parked import Delivery
from arborcast.dispatch.matching.view import ControlState
from arborcast.dispatch.redelivery.events import OperatorEvent
from arborcast.dispatch.redelivery.partition_reports import PartitionReport
from arborcast.dispatch.redelivery.redeliverer import Redeliverer
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.topic_model.expressions.conditions import XPATH_1
from arborcast.topic_model.records.control import ControlRecord, SubscriptionSuspended
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.routing import Found
from arborcast.topic_model.subscriptions import Subscription, XPathFilter
from tests.support.fake_journal import FakeJournal
from tests.support.hot import intake_of, outcomes_in, received
from tests.support.make import known_to_redelivery, subscription
from tests.support.outbound import THIS_MACHINE

LARGE = b"<x a='1'>" + b"<y/>" * 20_000 + b"</x>"


class Journal(FakeJournal):
    """Also records the numbers of matches, and the unjudged parked notifications."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: list[int] = []
        self.unjudged: list[tuple[str, str]] = []

    def matched(self, partition: int, control: int, counts: list[Matched]) -> None:
        self.counted += [each.subscriptions for each in counts]

    def park(self, delivery: Delivery, notification: Notification, *more: Any, **options: Any) -> None:
        super().park(delivery, notification, *more, **options)
        if notification.unjudged:
            self.unjudged.append((delivery.subscription, notification.id))


def with_conditions(name: str, owner: str, *content: str, pull_point: str = "") -> Subscription:
    filters = tuple(XPathFilter(XPATH_1, text, {}) for text in content)
    return subscription(name, content=filters, owner=owner, pull_point=pull_point)


def filled(
    subscribed: Sequence[Subscription], unjudged: frozenset[str], *payloads: bytes
) -> tuple[Journal, BatchOutcomes, dict[str, int]]:
    """A worker fills its lanes for subscriptions without a topic filter: its journal, the settled deliveries, and the
    number of waiting messages by subscription."""
    journal = Journal()
    intake = intake_of(outcomes_in(journal), journal, unjudged=unjudged, held=unjudged)
    for at, each in enumerate(payloads):
        intake.take(received(f"n{at}", at, payload=each, accepted_ms=1 << 60), Found(subscribed, ()))
    intake.write_evaluations()
    intake.fill(intake.lanes.fan_outs.size)
    return journal, intake.outcomes, {each.id: count for each, count in intake.lanes.waiting()}


def test_costly_subscriptions_are_parked_and_others_pushed() -> None:
    hostile = [with_conditions(f"h{number:03}", "mallory", f"//x/@a = {number}") for number in range(600)]
    pulling = with_conditions(
        "pulling", "eve", *[f"//x/@b = {number} or //y" for number in range(300)], pull_point="p1"
    )
    others = with_conditions("anna", "anna", "@a = 1"), with_conditions("plain", "")

    journal, settlement, waiting = filled([*hostile, pulling, *others], frozenset(), LARGE, LARGE, LARGE)

    costly = settlement.report.costly
    assert "pulling" in costly
    assert len(costly) > 200
    assert {name for name in costly if name.startswith("h")} == {name for name, _ in journal.unjudged}
    for name in sorted(costly - {"pulling"}):
        assert journal.states(name) == [(f"n{at}", "parked", "waiting") for at in range(3)]
    assert journal.states("pulling") == [(f"n{at}", "cancelled", "skipped") for at in range(3)]
    assert len(journal.unjudged) == 3 * (len(costly) - 1)
    assert (waiting["anna"], waiting["plain"]) == (3, 3)
    assert journal.counted == [len(costly) + len(waiting)] * 3

    # In the next batch they are suspended, and their conditions are not evaluated.
    suspended = [with_conditions("s", "mallory", "@a = 1"), with_conditions("t", "", "@a = 1")]
    journal, settlement, waiting = filled(suspended, frozenset({"s"}), b"<x a='1'/>", b"<x a='2'/>")
    assert journal.unjudged == [("s", "n0"), ("s", "n1")]
    assert (waiting, settlement.report.costly) == ({"t": 1}, set())


def test_costly_subscriptions_are_suspended_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[OperatorEvent] = []
    known = known_to_redelivery(ControlState(), with_conditions("s", "mallory", "@a = 1"))
    redeliverer = Redeliverer(
        *(KafkaSettings(), PushSettings(), RetrySettings(), THIS_MACHINE, known, tmp_path / "parked"),
        publish=events.append,
    )
    log: list[ControlRecord] = []
    monkeypatch.setattr(redeliverer._ends, "_control", SimpleNamespace(append=log.extend, close=lambda: None))

    redeliverer.batch_done([PartitionReport(costly={"s"}), PartitionReport(costly={"s", "ended meanwhile"})])

    (record,) = log
    assert isinstance(record, SubscriptionSuspended)
    assert (record.id, record.cause) == ("s", "conditions")
    assert "push.owner_conditions_ms" in record.reason
    assert [(each.kind, each.subscription, each.detail) for each in events] == [
        ("subscription-suspended", "s", record.reason)
    ]
    known.suspensions.apply(record)
    assert known.suspensions.unjudged() == {"s"}
    redeliverer.batch_done([PartitionReport(costly={"s"})])
    assert (len(log), len(events)) == (1, 1)
