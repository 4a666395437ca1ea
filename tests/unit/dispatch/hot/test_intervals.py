"""Minimum intervals: the same notifications pass for any division of the log into batches, rounds and runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arborcast.dispatch.hot import intervals
from arborcast.dispatch.hot.intervals import IntervalPolicies, Intervals, Passed, encoded, fold
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


def with_interval(
    name: str, interval_ms: int, interval_per: Per = "topic", deadline_ms: int | None = None
) -> Subscription:
    made = DeliveryPolicy(interval_ms=interval_ms, interval_per=interval_per, deadline_ms=deadline_ms)
    return subscription(name, policy=made)


EACH = with_interval("each", 100)
ALL = with_interval("all", 250, interval_per="subscription")
EVERY = with_interval("every", 0)
SUBSCRIBED = (EACH, ALL, EVERY)
POLICIES = {each.id: each.policy for each in SUBSCRIBED if each.policy.interval_ms}


HOUR_MS = 3_600_000


class Run:
    """An intake for a range of offsets."""

    def __init__(self, before: Passed, subscribed: Sequence[Subscription] = SUBSCRIBED, unjudged: str = "") -> None:
        self.journal = FakeJournal()
        self.intervals = Intervals(before)
        self.subscribed = subscribed
        self.intake = intake_of(
            outcomes_in(self.journal), intervals=self.intervals, unjudged=frozenset({unjudged} - {""})
        )

    def take(self, offset: int, at_ms: int, topic: str = "a", partition: int = 0) -> list[str]:
        """The recipients."""
        taken = received(f"{partition}-{offset}", offset, topic, accepted_ms=at_ms)._replace(partition=partition)
        count = self.intake.take(taken, Found(self.subscribed, []))
        (evaluated,) = self.intake.matched[partition][-1:]
        assert evaluated.subscriptions == count == len(self.subscribed) - evaluated.thinned
        return [each.id for each in self.subscribed if not each.policy.interval_ms or each.id in evaluated.passed]

    def evaluations(self) -> list[Evaluation]:
        """The written evaluations, decoded."""
        written = (Evaluation(number, 7, 0, matched) for number, matched in self.intake.matched.items())
        read = [evaluation_in(value) for each in written for value in encode_evaluation(each)]
        return [each for each in read if each is not None]


class Accepted(NamedTuple):
    partition: int
    topic: str
    at_ms: int


@st.composite
def logs(draw: st.DrawFn) -> dict[int, list[Accepted]]:
    """Two partitions with different topics. Clocks of gateways differ: times may decrease."""
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
def test_intervals_are_independent_of_batches_and_crashes(
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
    passed: Passed = {}
    for first, second, how in [*plan, (1.0, 1.0, "next")]:
        ends = positions_of(log, (first, second))
        run = Run(passed)
        for number, rows in log.items():
            for offset in range(at[number], ends[number]):
                found = run.take(offset, rows[offset].at_ms, rows[offset].topic, number)
                assert found == expected[number, offset]
        written += run.evaluations()
        if how == "next":
            # The reports of a batch or a round.
            passed = {**passed, **encoded(run.intervals.passed)}
            at = {number: max(at[number], ends[number]) for number in log}
        elif how == "restart":
            # The driver crashes too: the settled offsets are anywhere up to the end of the run.
            at = {
                number: min(ends[number], at[number] + 3) if ends[number] > at[number] else at[number] for number in log
            }
            passed = recalled(written, at)
        # "again": a worker dies, and the same offsets are read again.


def recalled(written: Sequence[Evaluation], at: Mapping[int, int]) -> Passed:
    passed: dict[int, dict[tuple[str, str], int]] = {}
    fold(passed, reversed(written), at, POLICIES)
    fold(passed, written, at, POLICIES)  # idempotent
    return encoded(passed)


@pytest.mark.parametrize(
    ("times", "passed"),
    [
        ([0, 50, 99, 100, 150, 199, 350, 449, 450], [0, 100, 350, 450]),
        # The clock is set back: the interval begins with the next message.
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
    # A start reads from the log. After a clock was set back it finds an earlier interval, and one more message passes.
    again = Run(recalled(written, {0: len(times)}), [EACH])
    later = [
        bool(again.take(len(times) + number, HOUR_MS + times[-1] + at)) for number, at in enumerate((50, 100, 150))
    ]
    assert later == ([True, False, True] if times[-1] < times[0] else [False, True, False])


def test_intervals_per_topic_and_per_subscription() -> None:
    run = Run({}, [EACH, ALL])
    assert run.take(0, 1_000, "a") == ["each", "all"]
    assert run.take(1, 1_010, "b") == ["each"]
    assert run.take(2, 1_120, "a") == ["each"]
    assert run.take(3, 1_250, "b") == ["each", "all"]
    assert run.take(0, 1_260, "c", partition=1) == ["each", "all"], "each partition separately"


def at(at_ms: int, only: str = "") -> Received:
    return received(f"o{at_ms}", at_ms, accepted_ms=at_ms, only=only)


def test_intervals_ignore_notifications_for_one_subscription() -> None:
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
    costly = msgspec.structs.replace(with_interval("costly", 100), content=(XPathFilter(XPATH_1, "count(//y) > 3"),))
    run = Run({}, [costly], unjudged="costly")
    assert [run.intake.take(at(each), Found([costly], [])) for each in (1_000, 1_050)] == [1, 1]
    assert all(each.passed == () for each in run.intake.matched[0]), "its conditions were not evaluated"


@pytest.mark.parametrize(
    ("interval_ms", "times"),
    [
        (1_000, (1_000, 1_500)),  # omitted messages end a silence, too
        (1, (1_500, 1_000)),  # independent of the order in the log
    ],
)
def test_a_silence_begins_with_the_newest_time_stamp(interval_ms: int, times: tuple[int, int]) -> None:
    run = Run({}, [with_interval("s", interval_ms, deadline_ms=1_000)])
    for offset, at_ms in enumerate(times):
        run.take(offset, at_ms)
    assert run.intake.outcomes.report.matched == {("s", "a"): 1_500}


def test_policies_from_the_control_log() -> None:
    state = ControlState()
    policies = IntervalPolicies(known_to_redelivery(state, *SUBSCRIBED))
    for each in SUBSCRIBED:
        state.apply(SubscriptionRecord(each))
    assert policies.policies() == POLICIES
    state.apply(SubscriptionEnded("all", "unsubscribed", 1))
    assert policies.policies() == {"each": EACH.policy}


def test_a_task_decodes_the_intervals_of_its_own_partitions() -> None:
    """Each round sends those of all partitions to all tasks."""
    before = Intervals({**encoded({0: {("each", "a"): 2_000}}), 1: b"of another task"})
    assert [before.passes(EACH, 0, TopicPath("a"), at_ms) for at_ms in (1_999, 2_000)] == [False, True]


def test_memory_for_intervals_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "_FEWEST", 10)
    monkeypatch.setattr(intervals, "_MOST", 400)
    made, daily = Intervals(), with_interval("s", 86_400_000)
    for number in range(200):
        assert made.passes(EACH, 0, TopicPath(f"t{number}"), 10_000 * number)
    assert len(made.passed[0]) < 30, "ended intervals are removed"
    assert not made.passes(EACH, 0, TopicPath("t199"), 10_000 * 199 + 99)

    made, topics = Intervals(), [TopicPath(f"t{number}") for number in range(1_200)]
    for partition in (0, 1):
        for number, topic in enumerate(topics):
            assert made.passes(daily, partition, topic, 1_000_000 + number)
            assert len(made.passed[partition]) <= 400
    assert len(made.passed[1]) <= 200, "the bound is shared by two partitions"
    assert not made.passes(daily, 1, topics[-1], 2_000_000)
    assert made.passes(daily, 1, topics[0], 2_000_000), "the interval with the earliest end was removed"

    read: dict[int, dict[intervals.Lane, int]] = {}
    for begin in range(0, 1_200, 10):
        matched = [Matched(f"n{at}", topics[at], at, at, 1, ("s",)) for at in range(begin, begin + 10)]
        fold(read, [Evaluation(7, 0, 0, matched)], {}, {"s": daily.policy})
        assert len(read[7]) <= 400
    assert ("s", topics[-1]) in read[7]
