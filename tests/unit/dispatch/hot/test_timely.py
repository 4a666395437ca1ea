"""Timely subscriptions in the hot path: what is not pushed at once is dropped, and nothing waits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest.mock import create_autospec

import msgspec
import pytest

from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.health import Sign
from arborcast.dispatch.delivery.transport.contract import PushRequest, PushResult
from arborcast.dispatch.hot.batch_outcomes import NEWER, BatchOutcomes
from arborcast.dispatch.hot.intake import HELD, SICK, Exclusions, Intake
from arborcast.dispatch.hot.lanes import DEFAULT_LIMITS, LaneLimits, Lanes
from arborcast.dispatch.hot.pump import Pump, PumpRun
from arborcast.dispatch.hot.recovered import RecoveredDeliveries
from arborcast.dispatch.hot.sink_journal import SinkJournal
from arborcast.dispatch.hot.waiting import Received
from arborcast.dispatch.matching.filters import Allowance, Conditions, Judge
from arborcast.dispatch.matching.view import ControlState
from arborcast.dispatch.redelivery import redeliverer
from arborcast.dispatch.redelivery.redeliverer import Redeliverer
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.routing import Found
from arborcast.topic_model.subscriptions import DeliveryPolicy, EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.fake_journal import FakeJournal
from tests.support.fake_transport import FakeTransport
from tests.support.make import known_to_redelivery
from tests.support.outbound import THIS_MACHINE

NOW_MS = 100_000
LONG_AGO_MS = NOW_MS - 2_001
RETRY = RetrySettings(jitter=0.0, breaker_failures=2, batch_wait_s=2.0)
TIMELY = Subscription("s", EndpointReference("http://s/"), form="raw", policy=DeliveryPolicy(reliability="timely"))
OTHER = Subscription("o", EndpointReference("http://o/"), form="raw")

NOTHING_EXCLUDED = Exclusions()

NO_PULL_POINTS = create_autospec(SinkJournal)


class World:
    """An intake, lanes and the pump, at one moment; `each_s` passes with each push."""

    def __init__(
        self,
        answer: Callable[[PushRequest], PushResult] = lambda _: PushResult(202),
        exclusions: Exclusions = NOTHING_EXCLUDED,
        each_s: float = 0.0,
    ) -> None:
        self.journal = FakeJournal()
        self.lanes = Lanes(LaneLimits(10, 10_000), DEFAULT_LIMITS)
        self.transport = FakeTransport(answer)

        def passed_s() -> float:
            return each_s * len(self.transport.sent)

        def now() -> float:
            return NOW_MS / 1000 + passed_s()

        self.outcomes = BatchOutcomes(self.journal, PushSettings(), RETRY, now=now)
        judge = Judge(Conditions(), Allowance(1_000.0, 1_000.0))
        self.intake = Intake(NO_PULL_POINTS, self.lanes, self.outcomes, judge, exclusions, exclusions.held)
        self.pump = Pump(self.transport, Envelope, 100, RETRY.batch_wait_s, now=now, clock=passed_s)

    def take(
        self,
        name: str,
        topic: str = "a",
        accepted_ms: int = NOW_MS,
        reliable: bool = False,
        to: Subscription = TIMELY,
    ) -> None:
        notification = Notification(name, TopicPath(topic), b"<x/>", accepted_ms, reliable=reliable)
        self.intake.take(Received(notification, 0, 0, 7), Found([to], []))

    def push(self) -> None:
        self.pump.run(PumpRun(self.lanes, self.outcomes))
        assert (self.lanes.empty, self.lanes.size) == (True, 0)

    def states(self) -> list[tuple[str, str]]:
        return [(row.notification, row.state) for row in self.journal.rows]


def test_what_is_taken_again_after_a_crash_is_not_pushed_behind_what_was_pushed_before_it() -> None:
    world = World()
    world.intake.recovered = RecoveredDeliveries(newest={("s", TopicPath("a")): (0, 5)})
    for offset, topic, reliable in ((4, "a", False), (4, "a", True), (4, "b", False), (6, "a", False)):
        notification = Notification(f"{topic}{offset}{'!' * reliable}", TopicPath(topic), b"<x/>", NOW_MS)
        notification = msgspec.structs.replace(notification, reliable=reliable)
        world.intake.take(Received(notification, 0, offset, 7), Found([TIMELY], []))
    world.push()
    assert sorted(world.states()) == [("a4", "dropped"), ("a4!", "delivered"), ("a6", "delivered"), ("b4", "delivered")]
    assert world.journal.rows[0].detail == NEWER


@pytest.mark.parametrize(
    ("result", "detail"),
    [
        (PushResult(500), "server-error: HTTP 500"),
        (PushResult(400), "client-error: HTTP 400"),
        (PushResult(503, retry_after_s=1.0), "server-error: HTTP 503"),
        (PushResult(0, "timeout", "no answer", duration_s=2.0), "timeout: no answer"),
        (PushResult(0, "connect", "refused"), "connect: refused"),
    ],
)
def test_what_a_push_does_not_bring_is_dropped_with_a_row(result: PushResult, detail: str) -> None:
    world = World(lambda _: result)
    world.take("n")
    world.push()
    (row,) = world.journal.rows
    assert (row.state, row.error, row.detail, row.status) == ("dropped", "timely", detail, result.status)
    assert (row.number, bool(row.push), row.next_ms) == (1, True, 0)
    assert (world.journal.parked, world.journal.buried) == ({}, [])


def test_what_waits_behind_a_push_without_an_answer_is_dropped_and_what_is_reliable_parked() -> None:
    world = World(lambda _: PushResult(0, "connect", "refused"))
    for name in ("n1", "n2", "n3"):
        world.take(name, reliable=name == "n2")
    world.push()
    assert world.states() == [("n1", "dropped"), ("n2", "parked"), ("n3", "dropped")]
    assert list(world.journal.parked) == [("s", "n2")]
    assert world.journal.parked["s", "n2"].number == 0
    assert len(world.transport.sent) == 1


def test_what_did_not_answer_is_tried_again_when_it_is_on_trial() -> None:
    world = World(lambda _: PushResult(0, "connect", "refused"))
    for number in range(4):
        if number == 2:
            world.outcomes.forget()
        if number == 3:
            world.outcomes.resume({"http://s/"})
        world.take(f"n{number}")
        world.push()
    assert len(world.transport.sent) == 2


@pytest.mark.parametrize(
    ("exclusions", "why"),
    [
        (Exclusions(held=frozenset({"s"})), HELD),
        (Exclusions(degraded=frozenset({"http://s/"})), SICK),
        (Exclusions(held=frozenset({"s"}), degraded=frozenset({"http://s/"}), on_trial=frozenset({"http://s/"})), HELD),
    ],
)
def test_what_may_not_be_pushed_now_is_dropped(exclusions: Exclusions, why: str) -> None:
    world = World(exclusions=exclusions)
    world.take("n1")
    world.take("n2", reliable=True)
    world.push()
    assert world.states() == [("n1", "dropped"), ("n2", "parked")]
    assert [row.detail for row in world.journal.rows] == [why, why]
    assert not world.transport.sent


def test_an_endpoint_on_trial_is_pushed_to_for_timely_subscriptions_only() -> None:
    sick = frozenset({"http://s/", "http://o/"})
    world = World(exclusions=Exclusions(degraded=sick, watched=sick, on_trial=sick))
    world.outcomes.watched = sick
    world.take("n1")
    world.take("n2", to=OTHER)
    world.push()
    assert world.states() == [("n2", "parked"), ("n1", "delivered")]
    assert world.outcomes.report.signs == [("http://s/", Sign("quick"))]


def test_once_a_lane_has_waited_for_too_long_the_newest_of_each_topic_is_pushed() -> None:
    world = World()
    for number, topic in enumerate("aabab", 1):
        world.take(f"n{number}", topic, LONG_AGO_MS if number == 1 else NOW_MS)
    world.take("n6", "c", reliable=True)
    world.take("n7", "c")
    world.push()
    assert world.states() == [
        ("n1", "dropped"),
        ("n2", "dropped"),
        ("n3", "dropped"),
        ("n4", "delivered"),
        ("n5", "delivered"),
        ("n6", "delivered"),
        ("n7", "delivered"),
    ]
    assert {row.detail for row in world.journal.rows if row.state == "dropped"} == {
        "a newer message of its topic is pushed instead"
    }


def test_a_receiver_that_is_slow_gets_the_newest_and_no_batch_waits_for_the_rest() -> None:
    world = World(lambda _: PushResult(202, duration_s=0.7), each_s=0.7)
    for number in range(100):
        world.take(f"n{number}")
    world.push()
    delivered = [name for name, state in world.states() if state == "delivered"]
    assert delivered == ["n0", "n1", "n2", "n99"]
    assert {state for _, state in world.states()} == {"delivered", "dropped"}


def test_nor_for_a_newest_of_each_of_many_topics() -> None:
    world = World(lambda _: PushResult(202, duration_s=0.7), each_s=0.7)
    for number in range(100):
        world.take(f"n{number}", f"t{number}")
    world.push()
    assert len(world.transport.sent) < 6
    assert not world.journal.parked


@pytest.mark.parametrize(
    ("result", "pushes", "lost_s"),
    [
        # Refused at once, which costs nothing: as often as probes.
        (PushResult(0, "connect", "refused"), range(55, 70), 61),
        # Each costs a batch its two seconds.
        (PushResult(0, "timeout", "no answer", duration_s=2.0), range(8, 17), 601),
        (PushResult(0, "connect", "no route", duration_s=2.0), range(8, 17), 601),
        (PushResult(202, duration_s=1.9), range(8, 17), 601),
    ],
)
def test_an_hour_of_batches_for_a_receiver_that_is_not_well(
    result: PushResult, pushes: range, lost_s: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = 1_000_000_000
    monkeypatch.setattr(redeliverer, "time_ms", lambda: now_ms)
    known = known_to_redelivery(ControlState(), TIMELY)
    driver = Redeliverer(KafkaSettings(), PushSettings(), RetrySettings(), THIS_MACHINE, known, tmp_path / "parked")

    def batch(answer: PushResult) -> tuple[int, str]:
        health = driver.health
        exclusions = Exclusions(degraded=health.degraded(), watched=health.watched(), on_trial=health.on_trial(now_ms))
        world = World(lambda _: answer, exclusions)
        world.outcomes.watched = exclusions.watched
        world.take("n")
        world.push()
        driver.batch_done([world.outcomes.take_report()])
        return len(world.transport.sent), world.journal.rows[0].state

    made = 0
    for _ in range(3_600):
        made += batch(result)[0]
        now_ms += 1_000
    assert made in pushes
    lost = 0
    while batch(PushResult(202))[1] != "delivered":
        now_ms += 1_000
        lost += 1
    assert lost <= lost_s
    for _ in range(700):
        now_ms += 1_000
        assert batch(PushResult(202))[1] == "delivered"
    assert not driver.health.degraded()
