from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.core.errors import InfrastructureError
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.job import deadlines
from arborcast.dispatch.job.deadlines import DeadlineKey, Deadlines, DeadlineWatch
from arborcast.dispatch.matching.view import ControlState
from arborcast.dispatch.redelivery.events import OperatorEvent
from arborcast.dispatch.redelivery.partition_reports import PartitionReport
from arborcast.topic_model.records.control import SubscriptionRecord, SubscriptionSuspended, Tombstone, ending
from arborcast.topic_model.subscriptions import DeliveryPolicy, Subscription
from tests.support.make import subscription


def with_deadline(name: str, deadline_ms: int | None = 1_000, **policy: Any) -> Subscription:
    return subscription(name, policy=DeliveryPolicy(deadline_ms=deadline_ms, **policy))


def missed(made: Deadlines, now_ms: int) -> dict[DeadlineKey, int]:
    """The missed deadlines that are reported, with the time of the last match."""
    found = {each: made.checked(each, now_ms) for each in made.over(now_ms)}
    assert all(notice[0] == "deadline-missed" for notice in found.values() if notice is not None)
    return {each: notice[1] for each, notice in found.items() if notice is not None}


def test_deadlines_per_topic_begin_with_the_first_notification() -> None:
    made = Deadlines()
    made.watch(with_deadline("s", deadline_per="topic"), 0)
    assert missed(made, 10_000) == {}
    made.matched("s", "a", 10_000, 10_000)
    made.matched("s", "b", 10_500, 10_500)
    assert missed(made, 11_000) == {DeadlineKey("s", "a"): 10_000}
    assert missed(made, 11_500) == {DeadlineKey("s", "b"): 10_500}
    assert made.matched("s", "a", 12_000, 12_000) == DeadlineKey("s", "a")


def test_a_changed_deadline_restarts_its_time_a_renewal_does_not() -> None:
    made = Deadlines()
    made.watch(with_deadline("s"), 0)
    made.watch(msgspec.structs.replace(with_deadline("s"), terminates_ms=99), 500)
    (over,) = made.over(1_000)
    assert made.checked(over, 999) is None, "messages of the last millisecond may be unmatched"
    assert missed(made, 1_000) == {DeadlineKey("s"): 0}
    made.watch(with_deadline("s", 300), 2_000)
    assert missed(made, 2_299) == {}
    assert missed(made, 2_300) == {DeadlineKey("s"): 2_000}
    made.forget("s")
    assert made.matched("s", "a", 3_000, 3_000) is None
    assert missed(made, 99_000) == {}


@given(st.lists(st.tuples(st.integers(1, 3_000), st.none() | st.integers(0, 3_000))))
def test_missed_and_met_alternate_by_time_of_acceptance(steps: list[tuple[int, int | None]]) -> None:
    made, now_ms, last_ms, silent = Deadlines(), 0, 0, False
    made.watch(with_deadline("s"), 0)
    for wait_ms, late_ms in steps:
        now_ms += wait_ms
        over = last_ms + 1_000 <= now_ms
        assert missed(made, now_ms) == ({DeadlineKey("s"): last_ms} if over and not silent else {})
        silent = silent or over
        if late_ms is not None:
            met = silent and late_ms < 1_000 and now_ms - late_ms > last_ms
            assert (made.matched("s", "a", now_ms - late_ms, now_ms) is not None) == met
            last_ms, silent = max(last_ms, now_ms - late_ms), silent and not met


class Watching:
    """A DeadlineWatch without its thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.view = ControlState()
        self.now_ms = 1_000_000
        self.end: int | InfrastructureError = 5
        self.at: Mapping[int, int] = {0: 5}
        self.events: list[OperatorEvent] = []
        self.watch = DeadlineWatch(
            KafkaSettings(), cast(Any, self.view), lambda: self.at, lambda: True, self.events.append
        )
        monkeypatch.setattr(deadlines, "time_ms", lambda: self.now_ms)
        monkeypatch.setattr(self.watch, "_log", SimpleNamespace(ends=self._ends, close=lambda: None))

    def change(self, subscription: Subscription) -> None:
        self.view.apply(SubscriptionRecord(subscription))

    def round(self, after_ms: int = 0) -> list[str]:
        """The events of one step of the watch, after this time."""
        self.now_ms += after_ms
        before = len(self.events)
        self.watch._step()
        return [f"{each.kind} {each.subscription}" for each in self.events[before:]]

    def _ends(self) -> dict[int, int]:
        if isinstance(self.end, InfrastructureError):
            raise self.end
        return {0: self.end}

    def matched(self, name: str) -> None:
        self.watch.apply([PartitionReport(matched={(name, "a"): self.now_ms}), PartitionReport()])


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> Watching:
    return Watching(monkeypatch)


def test_a_missed_deadline_is_reported_after_the_log_is_matched(watching: Watching) -> None:
    watching.change(with_deadline("s"))
    assert watching.round() == []
    watching.end = InfrastructureError("Kafka does not answer")
    with pytest.raises(InfrastructureError):
        watching.round(1_500)
    watching.end = 9
    assert watching.round() == []
    assert watching.round(60_000) == []
    watching.at = {}
    assert watching.round() == []
    watching.at = {0: 9}
    watching.end = 12  # accepted later
    assert watching.round() == ["deadline-missed s"]
    assert watching.events[0].since_ms == 1_000_000
    watching.matched("s")
    assert watching.round() == ["deadline-met s"]

    watching.round(1_500)
    watching.matched("s")
    watching.at = {0: 12}
    assert watching.round() == [], "a message was matched"
    assert watching.round(1_000) == ["deadline-missed s"]


def test_cost_of_missed_deadlines_behind_a_late_job(watching: Watching) -> None:
    class Positions(dict[int, int]):
        read = 0

        def get(self, key: int, default: Any = None) -> Any:
            self.read += 1
            return super().get(key, default)

    watching.at = late = Positions({0: 4})
    for number in range(1_000):
        watching.change(with_deadline(f"s{number}"))
    watching.round()
    assert watching.round(1_000) == []
    watching.change(with_deadline("last"))
    assert watching.round(100) == watching.round(1_000) == []
    assert late.read == 3, "one comparison of positions in each round"
    watching.end = 9
    late[0] = 5
    assert len(watching.round()) == 1_001


def test_a_late_job_reports_a_met_deadline_once(watching: Watching) -> None:
    watching.change(with_deadline("s"))
    watching.round()
    assert watching.round(1_000) == ["deadline-missed s"]
    watching.now_ms += 60_000
    notices = []
    for number in range(6, 20):
        watching.end, watching.at = number, {0: number - 6}
        watching.watch.apply([PartitionReport(matched={("s", "a"): watching.now_ms - 3_000})])
        notices += watching.round(500)
    assert notices == ["deadline-met s"]


def test_reports_before_the_next_step_are_merged(watching: Watching) -> None:
    """A step with notices for 50,000 subscribers lasts minutes; their reports arrive four times a second."""
    watching.change(with_deadline("s"))
    watching.round()
    assert watching.round(1_500) == ["deadline-missed s"]
    for ago_ms in (5_000, 100, 3_000):
        watching.watch.apply([PartitionReport(matched={("s", "a"): watching.now_ms - ago_ms})] * 100)
    assert len(watching.watch._reports._newest) == 1
    assert watching.round() == ["deadline-met s"]
    assert watching.events[-1].since_ms == watching.now_ms - 100


def test_a_gateway_with_a_late_clock_causes_one_notice(watching: Watching) -> None:
    watching.change(with_deadline("s"))
    watching.round()
    notices = []
    for _ in range(200):
        watching.watch.apply([PartitionReport(matched={("s", "a"): watching.now_ms - 5_000})])
        notices += watching.round(100)
    assert notices == ["deadline-missed s"]
    watching.matched("s")
    assert watching.round() == ["deadline-met s"]


def test_paused_suspended_and_ended_have_no_deadline(watching: Watching) -> None:
    plain = with_deadline("s")
    watching.change(plain)
    watching.change(msgspec.structs.replace(with_deadline("over"), terminates_ms=watching.now_ms + 500))
    watching.round()
    watching.change(msgspec.structs.replace(plain, paused=True))
    assert watching.round(5_000) == []
    watching.change(plain)
    assert watching.round() == [], "resume restarts the time"
    assert watching.round(1_000) == ["deadline-missed s"]
    watching.view.apply(SubscriptionSuspended("s", "refused", 1, 2))
    assert watching.round(5_000) == []
    watching.view.apply(Tombstone.of("susp", "s"))
    watching.round()
    for record in ending("s", "unsubscribed", 1):
        watching.view.apply(record)
    assert watching.round(5_000) == []
    watching.change(with_deadline("none", None))
    assert watching.round(5_000) == []


def test_deadlines_after_the_clock_was_set_back(watching: Watching) -> None:
    for name in ("s", "t"):
        watching.change(with_deadline(name))
    watching.round()
    watching.round(-3_600_000)
    watching.round(200)
    watching.matched("s")
    assert watching.round(700) == []
    assert watching.round(100) == ["deadline-missed t"]
    assert watching.round(200) == ["deadline-missed s"]


def test_deadlines_with_a_gateway_clock_ahead(watching: Watching) -> None:
    watching.change(with_deadline("s"))
    watching.round()
    watching.watch.apply([PartitionReport(matched={("s", "a"): watching.now_ms + 86_400_000})])
    assert watching.round(500) == []
    assert watching.round(1_000) == ["deadline-missed s"]
    watching.matched("s")
    assert watching.round() == ["deadline-met s"]


def test_the_number_of_watched_topics_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "_MOST", 3)
    made = Deadlines()
    for name in ("s", "t", "all"):
        made.watch(with_deadline(name, deadline_per="subscription" if name == "all" else "topic"), 0)
    for name in ("s", "t", "all"):
        for topic in ("a", "b"):
            made.matched(name, topic, 10, 10)
    assert missed(made, 5_000) == {
        DeadlineKey("s", "a"): 10,
        DeadlineKey("s", "b"): 10,
        DeadlineKey("t", "a"): 10,
        DeadlineKey("all"): 10,
    }
    made.forget("s")
    made.matched("t", "b", 20, 20)
    assert missed(made, 5_000) == {DeadlineKey("t", "b"): 20}, "forget makes room"
