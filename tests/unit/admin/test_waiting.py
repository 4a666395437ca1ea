"""Deliveries that wait, as values. On logs in Kafka: tests/integration/dispatch/test_waiting.py."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import pytest

from arborcast.admin import control_log, waiting
from arborcast.admin.waiting import WaitingFilter
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.dispatch.logs.parked import UNANSWERED_PUSH, Delivery, Place, Tries
from arborcast.dispatch.operations.views import DeliveryViews
from arborcast.dispatch.operations.waiting import DeliverySelection, Wait, Waiting
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.records.control import SubscriptionRecord, SubscriptionSuspended
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from tests.support.listed_logs import ListedLogs
from tests.support.routing import make_subscription

KAFKA = KafkaSettings()
NOW_MS = time.time_ns() // 1_000_000
LATER_MS = NOW_MS + 3_600_000


@pytest.fixture
def control() -> ControlView:
    control = ControlView()
    for name in ("s1", "s2"):
        control.apply(SubscriptionRecord(make_subscription(name, "a", consumer=f"http://r/{name}")))
    control.apply(SubscriptionSuspended("s2", "away", NOW_MS, NOW_MS))
    return control


def listed(
    monkeypatch: pytest.MonkeyPatch, wanted: WaitingFilter, control: ControlView | None, tries: Tries | None = None
) -> waiting.WaitingList:
    def oldest(
        _self: Waiting, asked: DeliverySelection, most: int, skip: int, *, newest_first: bool
    ) -> tuple[list[Wait], int, Counter[str]]:
        assert (skip, newest_first) == (0, False)
        names = [name for name in ("s1", "s2", "over") if asked.subscription(name)]
        waits = [Wait(Delivery(each, Place(1, 0, 1)), "n", TopicPath("a"), 1, 2, tries or Tries()) for each in names]
        return waits[:most], len(waits[most:]), Counter(each.delivery.subscription for each in waits)

    monkeypatch.setattr(Waiting, "oldest", oldest)
    monkeypatch.setattr(Waiting, "with_last", lambda _self, waits, _within_s: (waits, False))
    return waiting.oldest(KAFKA, wanted, 2, control)


def test_without_a_state_it_is_read(monkeypatch: pytest.MonkeyPatch, control: ControlView) -> None:
    monkeypatch.setattr(control_log, "read_control", lambda _: control)
    (only,) = listed(monkeypatch, WaitingFilter(endpoint="http://r/s2"), None).waiting
    assert only.subscription == "s2"
    (over,) = listed(monkeypatch, WaitingFilter(subscription="http://broker/over"), None).waiting
    assert (over.state, over.endpoint) == ("over", "")


@pytest.mark.parametrize(
    ("tries", "stage", "suspended", "next_ms"),
    [
        (Tries(), "queued", "held", 0),
        (Tries(1, 1, NOW_MS - 1, NOW_MS - 2), "due", "held", 0),
        (Tries(1, 0, LATER_MS, NOW_MS, f"{UNANSWERED_PUSH}p"), "under way", "under way", LATER_MS),
        (Tries(1, 0, LATER_MS, NOW_MS, "p"), "awaited", "awaited", LATER_MS),
        (Tries(2, 2, LATER_MS, NOW_MS), "scheduled", "held", LATER_MS),
    ],
    ids=["new", "due", "under way", "awaited", "scheduled"],
)
def test_stages(
    monkeypatch: pytest.MonkeyPatch, control: ControlView, tries: Tries, stage: str, suspended: str, next_ms: int
) -> None:
    """A time of the next attempt is never in the past, and a suspended subscription has none."""
    active, held = listed(monkeypatch, WaitingFilter(), control, tries).waiting
    assert (active.stage, active.next_ms) == (stage, next_ms)
    assert (held.stage, held.next_ms) == (suspended, 0 if suspended == "held" else next_ms)


def test_parts_of_a_list_have_the_last_attempts_and_end_with_it(
    monkeypatch: pytest.MonkeyPatch, control: ControlView
) -> None:
    logs, kept = ListedLogs(monkeypatch), DeliveryViews()
    for number in range(3):
        message = Notification(f"n{number}", TopicPath("a"), b"<x/>", 1)
        logs.park(Delivery("s1", Place(1, 0, number)), message, Tries(1, 1, LATER_MS, NOW_MS), at_ms=NOW_MS)
    attempt = Attempt("n", "s1", TopicPath("a"), "http://r/s1", 1, "p", "parked", 1, 1, 2.0, error="timeout")

    def with_last(_self: Waiting, waits: Sequence[Wait], within_s: float) -> tuple[list[Wait], bool]:
        assert within_s == 7.0
        return [each._replace(last=attempt) for each in waits], True

    monkeypatch.setattr(Waiting, "with_last", with_last)
    wanted, found, place = WaitingFilter(endpoint="http://r/s1"), list[waiting.WaitingEntry](), None
    for names in (["n2", "n1"], ["n0"]):
        part, place = waiting.following(KAFKA, wanted, 2, place, control, True, kept, 7.0)
        assert [each.notification for each in part] == names
        found += part
    assert place is None
    assert {(each.endpoint, each.error, each.state) for each in found} == {("http://r/s1", "timeout", "active")}
