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


@settings(max_examples=200, deadline=None)
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


def test_messages_are_so_far_apart_by_acceptance() -> None:
    run = Run({}, [EACH])
    times = [0, 50, 99, 100, 150, 199, 350, 449, 450]
    assert [at for offset, at in enumerate(times) if run.take(offset, 1_000 + at)] == [0, 100, 350, 450]
    assert sum(each.thinned for each in run.intake.matched[0]) == 5
    run.intake.write_evaluations()
    assert (run.intake.outcomes.report.thinned, run.intake.outcomes.report.deliveries) == (5, 4)


def test_after_a_clock_was_put_back_the_interval_begins_with_the_next_message() -> None:
    run = Run({}, [EACH])
    hour_ms = 3_600_000
    times = [hour_ms, hour_ms + 100, 1_000, 1_050, 1_100]
    assert [at for offset, at in enumerate(times) if run.take(offset, hour_ms + at)] == [
        hour_ms,
        hour_ms + 100,
        1_000,
        1_100,
    ]
    # A start reads the interval before the change from the log, and one more message passes.
    again = Run(recalled(run.evaluations(), {0: len(times)}), [EACH])
    assert [again.take(5 + number, hour_ms + at) for number, at in enumerate((1_150, 1_200, 1_250))] == [
        ["each"],
        [],
        ["each"],
    ]


def test_topics_count_by_themselves_or_together() -> None:
    run = Run({}, [EACH, ALL])
    assert run.take(0, 1_000, "a") == ["each", "all"]
    assert run.take(1, 1_010, "b") == ["each"]
    assert run.take(2, 1_120, "a") == ["each"]
    assert run.take(3, 1_250, "b") == ["each", "all"]
    assert run.take(0, 1_260, "c", partition=1) == ["each", "all"], "each partition counts for itself"


def test_what_is_for_one_alone_is_not_left_out_and_keeps_nothing_from_passing() -> None:
    run = Run({}, [EACH])
    run.take(0, 1_000)
    assert run.intake.take(at(1_010, only="each"), Found([EACH], [])) == 1
    assert run.intake.matched[0][-1].passed == ()
    assert run.take(2, 1_100) == ["each"]


def at(at_ms: int, only: str = "") -> Received:
    return received(f"o{at_ms}", at_ms, accepted_ms=at_ms, only=only)


def test_what_ended_meanwhile_counts_as_before() -> None:
    run = Run({}, [EACH])
    assert [run.intake.take(at(each), Found([], [EACH])) for each in (1_000, 1_050, 1_100)] == [1, 0, 1]
    assert [(row.notification, row.state) for row in run.journal.rows] == [
        ("o1000", "cancelled"),
        ("o1100", "cancelled"),
    ]


def test_what_may_not_be_wanted_keeps_nothing_from_passing() -> None:
    costly = msgspec.structs.replace(asking("costly", 100), content=(XPathFilter(XPATH_1, "count(//y) > 3"),))
    run = Run({}, [costly], unjudged="costly")
    assert [run.intake.take(at(each), Found([costly], [])) for each in (1_000, 1_050)] == [1, 1]
    assert all(each.passed == () for each in run.intake.matched[0])


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


def test_what_is_over_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "_FEWEST", 10)
    made = Intervals()
    for number in range(200):
        assert made.passes(EACH, 0, TopicPath(f"t{number}"), 10_000 * number)
    assert len(made.passed[0]) < 30
    assert not made.passes(EACH, 0, TopicPath("t199"), 10_000 * 199 + 99)


def test_who_asks_is_known_from_the_control_log() -> None:
    state = ControlState()
    known = IntervalPolicies(known_to_redelivery(state, *SUBSCRIBED))
    for each in SUBSCRIBED:
        state.apply(SubscriptionRecord(each))
    assert known.policies() == POLICIES
    state.apply(SubscriptionEnded("all", "unsubscribed", 1))
    assert known.policies() == {"each": EACH.policy}


def test_of_more_topics_than_are_known_those_whose_interval_ends_first_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intervals, "_MOST", 4_000)
    known, daily = Intervals(), asking("s", 86_400_000)
    topics = [TopicPath(f"t{number}") for number in range(12_000)]
    for partition in (0, 1):
        for number, topic in enumerate(topics):
            assert known.passes(daily, partition, topic, 1_000_000 + number)
            assert len(known.passed[partition]) <= 4_000
    assert len(known.passed[1]) <= 2_000, "two partitions share it"
    assert not known.passes(daily, 1, topics[-1], 2_000_000)
    assert known.passes(daily, 1, topics[0], 2_000_000), "forgotten, so one more passes"


def test_what_is_read_back_is_bounded_as_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "_MOST", 4_000)
    passed: dict[int, dict[intervals.Lane, int]] = {}
    policies = {"s": asking("s", 86_400_000).policy}
    for begin in range(0, 12_000, 100):
        matched = [Matched(f"n{at}", TopicPath(f"t{at}"), at, at, 1, ("s",)) for at in range(begin, begin + 100)]
        fold(passed, [Evaluation(7, 0, 0, matched)], {}, policies)
        assert len(passed[7]) <= 4_000
    assert ("s", "t11999") in passed[7]
