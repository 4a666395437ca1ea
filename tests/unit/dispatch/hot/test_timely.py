"""Timely subscriptions in the hot path: messages are pushed at once, or dropped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.health import Sign
from arborcast.dispatch.delivery.transport.contract import PushRequest, PushResult
from arborcast.dispatch.hot.batch_outcomes import NEWER
from arborcast.dispatch.hot.intake import HELD, SICK, Exclusions
from arborcast.dispatch.hot.pump import Pump, PumpRun
from arborcast.dispatch.hot.recovered import RecoveredDeliveries
from arborcast.dispatch.hot.waiting import WaitingMessages
from arborcast.dispatch.matching.view import ControlState
from arborcast.dispatch.redelivery import redeliverer
from arborcast.dispatch.redelivery.redeliverer import Redeliverer
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.topic_model.routing import Found
from arborcast.topic_model.subscriptions import DeliveryPolicy, Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.fake_journal import FakeJournal
from tests.support.fake_transport import FakeTransport
from tests.support.hot import RETRY, intake_of, outcomes_in, received
from tests.support.make import known_to_redelivery, subscription
from tests.support.outbound import THIS_MACHINE

NOW_MS = 100_000
LONG_AGO_MS = NOW_MS - 2_001
TIMELY = subscription("s", form="raw", policy=DeliveryPolicy(reliability="timely"))
REFUSED = PushResult(0, "connect", "refused")
S = frozenset({"http://s/"})


class Setup:
    """An intake, lanes and the pump; time changes only by `each_s` with each push."""

    def __init__(
        self,
        answer: Callable[[PushRequest], PushResult] = lambda _: PushResult(202),
        exclusions: Exclusions = Exclusions(),  # noqa: B008 - immutable
        each_s: float = 0.0,
    ) -> None:
        self.journal, self.transport = FakeJournal(), FakeTransport(answer)

        def passed_s() -> float:
            return each_s * len(self.transport.sent)

        def now() -> float:
            return NOW_MS / 1000 + passed_s()

        self.outcomes = outcomes_in(self.journal, now)
        self.outcomes.watched = exclusions.watched
        self.intake = intake_of(self.outcomes, exclusions=exclusions, held=exclusions.held)
        self.pump = Pump(self.transport, Envelope, 100, RETRY.batch_wait_s, now=now, clock=passed_s)

    def take(self, name: str, topic: str = "a", offset: int = 0, to: Subscription = TIMELY, **facts: Any) -> None:
        self.intake.take(received(name, offset, topic, **{"accepted_ms": NOW_MS, **facts}), Found([to], []))

    def push(self) -> None:
        self.pump.run(PumpRun(self.intake.lanes, self.outcomes))
        assert (self.intake.lanes.empty, self.intake.lanes.size) == (True, 0)

    def states(self) -> list[tuple[str, str]]:
        return [(row.notification, row.state) for row in self.journal.rows]


def test_after_a_crash_messages_before_the_newest_are_dropped() -> None:
    setup = Setup()
    setup.intake.recovered = RecoveredDeliveries(newest={("s", TopicPath("a")): (0, 5)})
    for offset, topic, reliable in ((4, "a", False), (4, "a", True), (4, "b", False), (6, "a", False)):
        setup.take(f"{topic}{offset}{'!' * reliable}", topic, offset, reliable=reliable)
    setup.push()
    assert sorted(setup.states()) == [("a4", "dropped"), ("a4!", "delivered"), ("a6", "delivered"), ("b4", "delivered")]
    assert setup.journal.rows[0].detail == NEWER


def test_a_failed_push_is_dropped_with_a_row() -> None:
    setup = Setup(lambda _: PushResult(503, retry_after_s=1.0))
    setup.take("n")
    setup.push()
    (row,) = setup.journal.rows
    assert (row.state, row.error, row.detail, row.status) == ("dropped", "timely", "server-error: HTTP 503", 503)
    assert (row.number, bool(row.push), row.next_ms) == (1, True, 0)
    assert (setup.journal.parked, setup.journal.buried) == ({}, [])


def test_after_a_failed_push_only_reliable_messages_are_parked() -> None:
    setup = Setup(lambda _: REFUSED)
    for name in ("n1", "n2", "n3"):
        setup.take(name, reliable=name == "n2")
    setup.push()
    assert setup.states() == [("n1", "dropped"), ("n2", "parked"), ("n3", "dropped")]
    assert [(key, tries.number) for key, tries in setup.journal.parked.items()] == [(("s", "n2"), 0)]
    assert len(setup.transport.sent) == 1
    for renew, pushes in ((setup.outcomes.forget, 1), (lambda: setup.outcomes.resume({"http://s/"}), 2)):
        renew()
        setup.take("later")
        setup.push()
        assert len(setup.transport.sent) == pushes, "one push on trial"


@pytest.mark.parametrize(
    ("exclusions", "why"),
    [
        (Exclusions(held=frozenset({"s"})), HELD),
        (Exclusions(degraded=S), SICK),
        (Exclusions(held=frozenset({"s"}), degraded=S, on_trial=S), HELD),
    ],
)
def test_messages_of_excluded_lanes_are_dropped(exclusions: Exclusions, why: str) -> None:
    setup = Setup(exclusions=exclusions)
    setup.take("n1")
    setup.take("n2", reliable=True)
    setup.push()
    assert setup.states() == [("n1", "dropped"), ("n2", "parked")]
    assert [row.detail for row in setup.journal.rows] == [why, why]
    assert not setup.transport.sent


def test_an_endpoint_on_trial_gets_timely_messages_only() -> None:
    sick = S | {"http://o/"}
    setup = Setup(exclusions=Exclusions(degraded=sick, watched=sick, on_trial=sick))
    setup.take("n1")
    setup.take("n2", to=subscription("o", form="raw"))
    setup.push()
    assert setup.states() == [("n2", "parked"), ("n1", "delivered")]
    assert setup.outcomes.report.signs == [("http://s/", Sign("quick"))]


def test_late_lanes_push_the_newest_of_each_topic() -> None:
    setup = Setup()
    for number, topic in enumerate("aabab", 1):
        setup.take(f"n{number}", topic, accepted_ms=LONG_AGO_MS if number == 1 else NOW_MS)
    setup.take("n6", "c", reliable=True)
    setup.take("n7", "c")
    setup.push()
    assert setup.states() == [(f"n{number}", "dropped" if number < 4 else "delivered") for number in range(1, 8)]
    assert {row.detail for row in setup.journal.rows if row.state == "dropped"} == {NEWER}


@pytest.mark.parametrize(("topics", "pushed"), [(1, ["n0", "n1", "n2", "n99"]), (100, ["n0", "n1", "n2", "n3"])])
def test_a_slow_receiver_gets_the_newest(topics: int, pushed: list[str]) -> None:
    setup = Setup(lambda _: PushResult(202, duration_s=0.7), each_s=0.7)
    for number in range(100):
        setup.take(f"n{number}", f"t{number % topics}")
    setup.push()
    assert [name for name, state in setup.states() if state == "delivered"] == pushed
    assert {state for _, state in setup.states()} == {"delivered", "dropped"}


def test_a_late_lane_is_examined_once_until_a_message_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the pushes of a lane with many topics would have quadratic costs."""
    examined: list[bool] = []
    monkeypatch.setattr(DeliveryPolicy, "drops", lambda _, reliable: examined.append(reliable))
    waiting = WaitingMessages()
    for offset, total in ((0, 1), (2, 1 + 3)):
        waiting.add(received("n", offset, "a"), 0)
        waiting.add(received("n", offset + 1, "a"), 0)
        for _ in range(3):
            assert not waiting.drop_older(TIMELY.policy)
        assert len(examined) == total, "each message with a newer one"


def test_old_messages_for_many_recipients_are_dropped() -> None:
    many = [msgspec.structs.replace(TIMELY, id=f"s{number}") for number in range(70)]
    for accepted_ms, dropped in ((LONG_AGO_MS, 70), (NOW_MS, 0)):
        setup = Setup()
        setup.intake.take(received("n1", accepted_ms=accepted_ms), Found(many, []))
        setup.intake.take(received("n2", 1, accepted_ms=NOW_MS), Found(many[:1], []))
        setup.intake.take(received("n3", 2, accepted_ms=NOW_MS), Found(many, []))
        assert setup.intake.lanes.fan_outs.size == 141, "later messages of the topic wait behind it"
        setup.intake.fill(70)
        assert setup.states() == [("n1", "dropped")] * dropped
        assert setup.intake.lanes.size == 70 - dropped


@pytest.mark.parametrize(
    ("result", "pushes", "lost_s"),
    [
        # Refused at once, without cost: as often as probes.
        (REFUSED, range(20, 30), 61),
        # Each push costs a batch two seconds.
        (PushResult(202, duration_s=1.9), range(8, 13), 601),
    ],
)
def test_pushes_to_a_failing_receiver_in_twenty_minutes(
    result: PushResult, pushes: range, lost_s: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = 1_000_000_000
    monkeypatch.setattr(redeliverer, "time_ms", lambda: now_ms)
    known = known_to_redelivery(ControlState(), TIMELY)
    driver = Redeliverer(KafkaSettings(), PushSettings(), RetrySettings(), THIS_MACHINE, known, tmp_path / "parked")

    def batch(answer: PushResult) -> tuple[int, str]:
        health = driver.health
        exclusions = Exclusions(degraded=health.degraded(), watched=health.watched(), on_trial=health.on_trial(now_ms))
        setup = Setup(lambda _: answer, exclusions)
        setup.take("n")
        setup.push()
        driver.batch_done([setup.outcomes.take_report()])
        return len(setup.transport.sent), setup.journal.rows[0].state

    made = 0
    for _ in range(1_200):
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
