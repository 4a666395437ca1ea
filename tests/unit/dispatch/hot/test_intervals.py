"""Minimum intervals: what passes is the same however the log is cut into batches, rounds and runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arborcast.dispatch.hot import intervals
from arborcast.dispatch.hot.intervals import IntervalPolicies, Intervals, Passed, fold
from arborcast.dispatch.hot.waiting import Received
from arborcast.dispatch.logs.attempts import Evaluation, Matched, encode_evaluation, evaluation_in
from arborcast.dispatch.matching.view import ControlState
from arborcast.topic_model.expressions.conditions import XPATH_1
from arborcast.topic_model.records.control import SubscriptionEnded, SubscriptionRecord
from arborcast.topic_model.routing import Found
from arborcast.topic_model.subscriptions import DeliveryPolicy, Per, Subscription, XPathFilter
from arborcast.topic_model.topics import TopicPath
from tests.support.fake_journal import FakeJournal
from tests.support.hot import intake_of, outcomes_in, received
from tests.support.make import known_to_redelivery, subscription


def asking(name: str, interval_ms: int, interval_per: Per = "topic", deadline_ms: int | None = None) -> Subscription:
    made = DeliveryPolicy(interval_ms=interval_ms, interval_per=interval_per, deadline_ms=deadline_ms)
    return subscription(name, policy=made)


EACH = asking("each", 100)
ALL = asking("all", 250, interval_per="subscription")
EVERY = asking("every", 0)
SUBSCRIBED = (EACH, ALL, EVERY)
POLICIES = {each.id: each.policy for each in SUBSCRIBED if each.policy.interval_ms}


HOUR_MS = 3_600_000


class Run:
    """An intake from one place of the log to another."""

    def __init__(self, before: Passed, subscribed: Sequence[Subscription] = SUBSCRIBED, unjudged: str = "") -> None:
        self.journal = FakeJournal()
        self.intervals = Intervals(before)
        self.subscribed = subscribed
        self.intake = intake_of(
            outcomes_in(self.journal), intervals=self.intervals, unjudged=frozenset({unjudged} - {""})
        )

    def take(self, offset: int, at_ms: int, topic: str = "a", partition: int = 0) -> list[str]:
        """Whom it is for."""
        taken = received(f"{partition}-{offset}", offset, topic, accepted_ms=at_ms)._replace(partition=partition)
        count = self.intake.take(taken, Found(self.subscribed, []))
        (evaluated,) = self.intake.matched[partition][-1:]
        assert evaluated.subscriptions == count == len(self.subscribed) - evaluated.thinned
        return [each.id for each in self.subscribed if not each.policy.interval_ms or each.id in evaluated.passed]

    def evaluations(self) -> list[Evaluation]:
        """What it has written down, as it is read back."""
        written = (Evaluation(number, 7, 0, matched) for number, matched in self.intake.matched.items())
        read = [evaluation_in(value) for each in written for value in encode_evaluation(each)]
        return [each for each in read if each is not None]


class Accepted(NamedTuple):
    partition: int
    topic: str
    at_ms: int


@st.composite
def logs(draw: st.DrawFn) -> dict[int, list[Accepted]]:
    """Two partitions, with topics of their own. Clocks of gateways differ, so times go back, too."""
    made: dict[int, list[Accepted]] = {0: [], 1: []}
    now_ms = 1_000
    for _ in range(draw(st.integers(1, 40))):
        now_ms += draw(st.sampled_from((0, 1, 20, 50, 99, 100, 101, 400, -5, -120)))
        partition = draw(st.integers(0, 1))
        made[partition].append(Accepted(partition, f"{'ab'[draw(st.integers(0, 1))]}{partition}", now_ms))
    return made


def positions_of(log: Mapping[int, Sequence[Accepted]], cut: Sequence[float]) -> dict[int, int]:
    return {number: int(cut[number] * len(rows)) for number, rows in log.items()}


cuts = st.lists(
    st.tuples(st.floats(0, 1), st.floats(0, 1), st.sampled_from(("next", "again", "restart"))), min_size=1, max_size=8
)


@settings(max_examples=100, deadline=None)
@given(logs(), cuts)
def test_what_passes_is_the_same_however_the_log_is_cut(
    log: dict[int, list[Accepted]], plan: list[tuple[float, float, str]]
) -> None:
    whole = Run({})
    expected = {
        (number, offset): whole.take(offset, row.at_ms, row.topic, number)
        for number, rows in log.items()
        for offset, row in enumerate(rows)
    }
    written: list[Evaluation] = []
    at = dict.fromkeys(log, 0)
    known: dict[int, Mapping[tuple[str, str], int]] = {}
    for first, second, how in [*plan, (1.0, 1.0, "next")]:
        ends = positions_of(log, (first, second))
        run = Run(known)
        for number, rows in log.items():
            for offset in range(at[number], ends[number]):
                found = run.take(offset, rows[offset].at_ms, rows[offset].topic, number)
                assert found == expected[number, offset]
        written += run.evaluations()
        if how == "next":
            # As a batch reports it, and a round.
            known = {**known, **run.intervals.passed}
            at = {number: max(at[number], ends[number]) for number in log}
        elif how == "restart":
            # The driver is gone, too. What was settled before the crash is anything up to the place that was reached.
            at = {
                number: min(ends[number], at[number] + 3) if ends[number] > at[number] else at[number] for number in log
            }
            known = recalled(written, at)
        # Else a worker has died: the same again.


def recalled(written: Sequence[Evaluation], at: Mapping[int, int]) -> dict[int, Mapping[tuple[str, str], int]]:
    passed: dict[int, dict[tuple[str, str], int]] = {}
    fold(passed, reversed(written), at, POLICIES)
    fold(passed, written, at, POLICIES)  # what is read twice does no harm
    return dict(passed)


@pytest.mark.parametrize(
    ("times", "passed"),
    [
        ([0, 50, 99, 100, 150, 199, 350, 449, 450], [0, 100, 350, 450]),
        # A clock is put back: the interval begins with the next message.
        ([HOUR_MS, HOUR_MS + 100, 1_000, 1_050, 1_100], [HOUR_MS, HOUR_MS + 100, 1_000, 1_100]),
    ],
)
def test_an_interval_counts_by_acceptance(times: list[int], passed: list[int]) -> None:
    run = Run({}, [EACH])
    assert [at for offset, at in enumerate(times) if run.take(offset, HOUR_MS + at)] == passed
    thinned = len(times) - len(passed)
    assert sum(each.thinned for each in run.intake.matched[0]) == thinned
    written = run.evaluations()
    run.intake.write_evaluations()
    assert (run.intake.outcomes.report.thinned, run.intake.outcomes.report.deliveries) == (thinned, len(passed))
    # A start reads from the log; behind a clock that was put back it finds an earlier interval, and one more passes.
    again = Run(recalled(written, {0: len(times)}), [EACH])
    later = [
        bool(again.take(len(times) + number, HOUR_MS + times[-1] + at)) for number, at in enumerate((50, 100, 150))
    ]
    assert later == ([True, False, True] if times[-1] < times[0] else [False, True, False])


def test_topics_count_separately_or_together() -> None:
    run = Run({}, [EACH, ALL])
    assert run.take(0, 1_000, "a") == ["each", "all"]
    assert run.take(1, 1_010, "b") == ["each"]
    assert run.take(2, 1_120, "a") == ["each"]
    assert run.take(3, 1_250, "b") == ["each", "all"]
    assert run.take(0, 1_260, "c", partition=1) == ["each", "all"], "each partition counts for itself"


def at(at_ms: int, only: str = "") -> Received:
    return received(f"o{at_ms}", at_ms, accepted_ms=at_ms, only=only)


def test_a_notification_for_one_alone_passes_beside_the_interval() -> None:
    run = Run({}, [EACH])
    run.take(0, 1_000)
    assert run.intake.take(at(1_010, only="each"), Found([EACH], [])) == 1
    assert run.intake.matched[0][-1].passed == ()
    assert run.take(2, 1_100) == ["each"]


def test_intervals_of_subscriptions_that_ended_or_are_not_judged() -> None:
    run = Run({}, [EACH])
    assert [run.intake.take(at(each), Found([], [EACH])) for each in (1_000, 1_050, 1_100)] == [1, 0, 1]
    assert [(row.notification, row.state) for row in run.journal.rows] == [
        ("o1000", "cancelled"),
        ("o1100", "cancelled"),
    ]
    costly = msgspec.structs.replace(asking("costly", 100), content=(XPathFilter(XPATH_1, "count(//y) > 3"),))
    run = Run({}, [costly], unjudged="costly")
    assert [run.intake.take(at(each), Found([costly], [])) for each in (1_000, 1_050)] == [1, 1]
    assert all(each.passed == () for each in run.intake.matched[0]), "its conditions may not have matched"


@pytest.mark.parametrize(
    ("interval_ms", "times"),
    [
        (1_000, (1_000, 1_500)),  # left out: or a flow would be a silence now and then
        (1, (1_500, 1_000)),  # whichever gateway has appended last
    ],
)
def test_a_silence_begins_with_the_newest_time_stamp(interval_ms: int, times: tuple[int, int]) -> None:
    run = Run({}, [asking("s", interval_ms, deadline_ms=1_000)])
    for offset, at_ms in enumerate(times):
        run.take(offset, at_ms)
    assert run.intake.outcomes.report.matched == {("s", "a"): 1_500}


def test_policies_are_those_of_the_control_log() -> None:
    state = ControlState()
    known = IntervalPolicies(known_to_redelivery(state, *SUBSCRIBED))
    for each in SUBSCRIBED:
        state.apply(SubscriptionRecord(each))
    assert known.policies() == POLICIES
    state.apply(SubscriptionEnded("all", "unsubscribed", 1))
    assert known.policies() == {"each": EACH.policy}


def test_memory_for_intervals_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "_FEWEST", 10)
    monkeypatch.setattr(intervals, "_MOST", 400)
    made, daily = Intervals(), asking("s", 86_400_000)
    for number in range(200):
        assert made.passes(EACH, 0, TopicPath(f"t{number}"), 10_000 * number)
    assert len(made.passed[0]) < 30, "intervals that are over"
    assert not made.passes(EACH, 0, TopicPath("t199"), 10_000 * 199 + 99)

    made, topics = Intervals(), [TopicPath(f"t{number}") for number in range(1_200)]
    for partition in (0, 1):
        for number, topic in enumerate(topics):
            assert made.passes(daily, partition, topic, 1_000_000 + number)
            assert len(made.passed[partition]) <= 400
    assert len(made.passed[1]) <= 200, "two partitions share it"
    assert not made.passes(daily, 1, topics[-1], 2_000_000)
    assert made.passes(daily, 1, topics[0], 2_000_000), "forgotten as the first to end, so one more passes"

    read: dict[int, dict[intervals.Lane, int]] = {}
    for begin in range(0, 1_200, 10):
        matched = [Matched(f"n{at}", topics[at], at, at, 1, ("s",)) for at in range(begin, begin + 10)]
        fold(read, [Evaluation(7, 0, 0, matched)], {}, {"s": daily.policy})
        assert len(read[7]) <= 400
    assert ("s", topics[-1]) in read[7]
