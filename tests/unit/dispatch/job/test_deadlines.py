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
from arborcast.dispatch.job.deadlines import Deadlines, DeadlineWatch, Quiet
from arborcast.dispatch.redelivery.events import OperatorEvent
from arborcast.dispatch.redelivery.partition_reports import PartitionReport
from arborcast.topic_model.subscriptions import DeliveryPolicy, Subscription
from tests.support.make import subscription


def asking(name: str, deadline_ms: int | None = 1_000, **policy: Any) -> Subscription:
    return subscription(name, policy=DeliveryPolicy(deadline_ms=deadline_ms, **policy))


def missed(made: Deadlines, now_ms: int) -> dict[Quiet, int]:
    """The silences that are reported, with the last match of each."""
    found = {each: made.checked(each, now_ms) for each in made.over(now_ms)}
    assert all(notice[0] == "deadline-missed" for notice in found.values() if notice is not None)
    return {each: notice[1] for each, notice in found.items() if notice is not None}


def test_each_topic_from_its_first_notification() -> None:
    made = Deadlines()
    made.watch(asking("s", deadline_per="topic"), 0)
    assert missed(made, 10_000) == {}
    made.matched("s", "a", 10_000, 10_000)
    made.matched("s", "b", 10_500, 10_500)
    assert missed(made, 11_000) == {Quiet("s", "a"): 10_000}
    assert missed(made, 11_500) == {Quiet("s", "b"): 10_500}
    assert made.matched("s", "a", 12_000, 12_000) == Quiet("s", "a")


def test_another_deadline_begins_a_silence_and_a_renewal_does_not() -> None:
    made = Deadlines()
    made.watch(asking("s"), 0)
    made.watch(msgspec.structs.replace(asking("s"), terminates_ms=99), 500)
    (over,) = made.over(1_000)
    assert made.checked(over, 999) is None, "messages of the last millisecond may be unmatched"
    assert missed(made, 1_000) == {Quiet("s"): 0}
    made.watch(asking("s", 300), 2_000)
    assert missed(made, 2_299) == {}
    assert missed(made, 2_300) == {Quiet("s"): 2_000}
    made.forget("s")
    assert made.matched("s", "a", 3_000, 3_000) is None
    assert missed(made, 99_000) == {}


@given(st.lists(st.tuples(st.integers(1, 3_000), st.none() | st.integers(0, 3_000))))
def test_misses_and_mets_alternate_by_times_of_acceptance(steps: list[tuple[int, int | None]]) -> None:
    made, now_ms, last_ms, silent = Deadlines(), 0, 0, False
    made.watch(asking("s"), 0)
    for wait_ms, late_ms in steps:
        now_ms += wait_ms
        over = last_ms + 1_000 <= now_ms
        assert missed(made, now_ms) == ({Quiet("s"): last_ms} if over and not silent else {})
        silent = silent or over
        if late_ms is not None:
            met = silent and late_ms < 1_000 and now_ms - late_ms > last_ms
            assert (made.matched("s", "a", now_ms - late_ms, now_ms) is not None) == met
            last_ms, silent = max(last_ms, now_ms - late_ms), silent and not met


class View:
    """A control log that is read."""

    def __init__(self) -> None:
        self.subscriptions: dict[str, Subscription] = {}
        self.sleeping: set[str] = set()
        self.subscription = self.subscriptions.get
        self.suspended = self.sleeping.__contains__

    def listen(self, listener: DeadlineWatch) -> None:
        self._listener = listener

    def change(self, subscription: Subscription) -> None:
        self.subscriptions[subscription.id] = subscription
        self._listener.subscription_changed(subscription.id)

    def end(self, name: str) -> None:
        del self.subscriptions[name]
        self._listener.subscription_changed(name)


class Watching:
    """A watch without its thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.view = View()
        self.now_ms = 1_000_000
        self.end: int | InfrastructureError = 5
        self.at: Mapping[int, int] | None = {0: 5}
        self.told: list[OperatorEvent] = []
        self.watch = DeadlineWatch(
            KafkaSettings(), cast(Any, self.view), lambda: self.at, lambda: True, self.told.append
        )
        monkeypatch.setattr(deadlines, "time_ms", lambda: self.now_ms)
        monkeypatch.setattr(self.watch, "_log", SimpleNamespace(ends=self._ends, close=lambda: None))

    def round(self, after_ms: int = 0) -> list[str]:
        """Some time passes, and the watch comes round once; what it tells."""
        self.now_ms += after_ms
        before = len(self.told)
        self.watch._step()
        return [f"{each.kind} {each.subscription}" for each in self.told[before:]]

    def _ends(self) -> dict[int, int]:
        if isinstance(self.end, InfrastructureError):
            raise self.end
        return {0: self.end}

    def comes(self, name: str) -> None:
        self.watch.apply([PartitionReport(matched={(name, "a"): self.now_ms}), PartitionReport()])


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> Watching:
    return Watching(monkeypatch)


def test_a_silence_is_reported_once_the_log_is_matched(watching: Watching) -> None:
    watching.view.change(asking("s"))
    assert watching.round() == []
    watching.end = InfrastructureError("Kafka does not answer")
    with pytest.raises(InfrastructureError):
        watching.round(1_500)
    watching.end = 9
    assert watching.round() == []
    assert watching.round(60_000) == []
    watching.at = None
    assert watching.round() == []
    watching.at = {0: 9}
    watching.end = 12  # accepted later
    assert watching.round() == ["deadline-missed s"]
    assert watching.told[0].since_ms == 1_000_000
    watching.comes("s")
    assert watching.round() == ["deadline-met s"]

    watching.round(1_500)
    watching.comes("s")
    watching.at = {0: 12}
    assert watching.round() == [], "one was matched meanwhile"
    assert watching.round(1_000) == ["deadline-missed s"]


def test_silences_that_wait_for_a_late_job_cost_nothing(watching: Watching) -> None:
    class Positions(dict[int, int]):
        read = 0

        def get(self, key: int, default: Any = None) -> Any:
            self.read += 1
            return super().get(key, default)

    watching.at = late = Positions({0: 4})
    for number in range(1_000):
        watching.view.change(asking(f"s{number}"))
    watching.round()
    assert watching.round(1_000) == []
    watching.view.change(asking("last"))
    assert watching.round(100) == watching.round(1_000) == []
    assert late.read == 3, "the positions were compared once in each round"
    watching.end = 9
    late[0] = 5
    assert len(watching.round()) == 1_001


def test_a_late_job_reports_no_silence(watching: Watching) -> None:
    """Each message is matched three seconds after its acceptance; the deadline is one second."""
    watching.view.change(asking("s"))
    for number in range(5, 20):
        watching.end, watching.at = number, {0: number - 6}
        watching.watch.apply([PartitionReport(matched={("s", "a"): watching.now_ms - 3_000})])
        assert watching.round(500) == []


def test_a_late_job_reports_the_end_of_a_silence_once_that_is_certain(watching: Watching) -> None:
    watching.view.change(asking("s"))
    watching.round()
    assert watching.round(1_000) == ["deadline-missed s"]
    watching.now_ms += 60_000
    notices = []
    for number in range(6, 20):
        watching.end, watching.at = number, {0: number - 6}
        watching.watch.apply([PartitionReport(matched={("s", "a"): watching.now_ms - 3_000})])
        notices += watching.round(500)
    assert notices == ["deadline-met s"]


def test_a_gateway_with_its_clock_behind_causes_one_notice(watching: Watching) -> None:
    watching.view.change(asking("s"))
    watching.round()
    notices = []
    for _ in range(200):
        watching.watch.apply([PartitionReport(matched={("s", "a"): watching.now_ms - 5_000})])
        notices += watching.round(100)
    assert notices == ["deadline-missed s"]
    watching.comes("s")
    assert watching.round() == ["deadline-met s"]


def test_paused_suspended_and_ended_subscriptions_have_no_silence(watching: Watching) -> None:
    plain = asking("s")
    watching.view.change(plain)
    watching.view.change(msgspec.structs.replace(asking("over"), terminates_ms=watching.now_ms + 500))
    watching.round()
    watching.view.change(msgspec.structs.replace(plain, paused=True))
    assert watching.round(5_000) == []
    watching.view.change(plain)
    assert watching.round() == [], "resumed: another silence begins"
    assert watching.round(1_000) == ["deadline-missed s"]
    watching.view.sleeping.add("s")
    watching.view.change(plain)
    assert watching.round(5_000) == []
    watching.view.sleeping.clear()
    watching.view.change(plain)
    watching.round()
    watching.view.end("s")
    assert watching.round(5_000) == []
    watching.view.change(asking("none", None))
    assert watching.round(5_000) == []


def test_a_silence_after_a_clock_was_put_back(watching: Watching) -> None:
    for name in ("s", "t"):
        watching.view.change(asking(name))
    watching.round()
    watching.round(-3_600_000)
    watching.round(200)
    watching.comes("s")
    assert watching.round(700) == []
    assert watching.round(100) == ["deadline-missed t"]
    assert watching.round(200) == ["deadline-missed s"]


def test_a_silence_beside_a_gateway_with_its_clock_ahead(watching: Watching) -> None:
    watching.view.change(asking("s"))
    watching.round()
    watching.watch.apply([PartitionReport(matched={("s", "a"): watching.now_ms + 86_400_000})])
    assert watching.round(500) == []
    assert watching.round(1_000) == ["deadline-missed s"]
    watching.comes("s")
    assert watching.round() == ["deadline-met s"]


def test_the_number_of_watched_topics_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "_MOST", 3)
    made = Deadlines()
    for name in ("s", "t", "all"):
        made.watch(asking(name, deadline_per="subscription" if name == "all" else "topic"), 0)
    for name in ("s", "t", "all"):
        for topic in ("a", "b"):
            made.matched(name, topic, 10, 10)
    assert missed(made, 5_000) == {Quiet("s", "a"): 10, Quiet("s", "b"): 10, Quiet("t", "a"): 10, Quiet("all"): 10}
    made.forget("s")
    made.matched("t", "b", 20, 20)
    assert missed(made, 5_000) == {Quiet("t", "b"): 20}, "there is room again"
