"""The order of pushes, derived from rows: checked with short histories, and with a comparison of all pairs."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, cast

import msgspec
import pytest

from arborcast.dispatch.logs.attempts import Attempt, State
from arborcast.dispatch.operations.audit.ledger import Ledger
from arborcast.dispatch.operations.audit.order import STRICT, UNORDERED, OrderCheck, order_of
from arborcast.dispatch.operations.audit.report import Report
from arborcast.topic_model.subscriptions import DeliveryPolicy
from arborcast.topic_model.topics import TopicPath
from tests.support import make
from tests.support.listed_logs import Listed
from tests.support.written_attempts import T0, evaluation, row, rows


def pushed(
    notification: str, push: str, started_ms: int = 0, state: State = "delivered", subscription: str = "s", **more: Any
) -> Attempt:
    """A row of a push."""
    more = {"number": 1, "topic": TopicPath("a/b"), "started_ms": T0 + started_ms, "push": push, **more}
    return msgspec.structs.replace(row(notification, subscription, state), **more)


def checked(
    evaluations: Sequence[bytes], *written: Attempt, orders: Mapping[str, int] | None = None, apart_ms: int = 10
) -> Report:
    """The report on these rows, each in its own record."""
    ledger = Ledger()
    for value in (*evaluations, *(rows(each) for each in written)):
        ledger.add(value)
    check = OrderCheck(ledger, ledger.evaluations(), {"s": 0} if orders is None else orders)
    report = Report(T0, T0 + 1)
    try:
        for offset, each in enumerate(written):
            check.add(Listed(b"", rows(each), offset, T0 + offset * apart_ms))
        check.report(report, 100)
    finally:
        check.close()
    return report


def late(report: Report) -> list[str]:
    return [f"{each.kind} {each.notification}" for each in report.problems]


def pushes(text: str) -> list[Attempt]:
    """Pushes in sequence: notification, push (`-`: none), number of the attempt, state."""
    made = []
    for at, each in enumerate(text.split(", "), 1):
        name, push, number, state = [*each.split(), *("1", "delivered")[len(each.split()) - 2 :]]
        push = "" if push == "-" else push
        error = "redriven" if state == "redriven" else ""
        made.append(pushed(name, push, at, cast(State, "parked" if error else state), number=int(number), error=error))
    return made


THREE = [evaluation({"n1": 1, "n2": 1, "n3": 1})]
TOPICS = [evaluation({"n1": 1}, topic="a"), evaluation({"n2": 1}, first=1, topic="b")]
URGENT = [evaluation({"n1": 1}), evaluation({"n2": 1}, first=1, priority=5), evaluation({"n3": 1}, first=2)]


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("n2 w-1, n3 w-2, n1 w-3", ["out-of-order n1"]),
        # Messages of one push. Retries, repetitions, redrives and rows without a push are no first attempts.
        ("n3 w-1, n2 w-1, n1 w-1", []),
        ("n1 w-1 1 parked, n2 w-2, n1 w-3 2", []),
        ("n1 w-1, n2 w-2, n1 w-3", []),
        ("n1 w-1 1 dead, n2 w-2, n1 - 0 redriven, n1 w-3", []),
        ("n1 - 0 dead, n2 w-2, n1 - 0 redriven, n1 w-3", []),
        ("n2 w-1, n1 - 0 expired", []),
    ],
)
def test_an_overtaken_first_attempt_is_named(written: str, found: list[str]) -> None:
    report = checked(THREE, *pushes(written))
    assert late(report) == found
    for problem in report.problems:
        assert (problem.subscription, problem.topic, problem.partition, problem.offset) == ("s", "a/b", 0, 0)
        assert (report.unbalanced, report.disordered) == (1, 1)


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("n1 w-1 1 parked, n1 w-2 2, n2 w-3", []),
        ("n1 w-1 1 parked, n2 w-2, n1 w-3 2", ["out-of-turn n1"]),
        ("n1 w-1, n2 w-2, n1 w-3 2", []),  # a repetition after its end
        ("n1 w-1 1 parked, n2 w-2", []),  # n1 has no further push
    ],
)
def test_strict_order_is_by_the_ends_of_deliveries(written: str, found: list[str]) -> None:
    assert late(checked(THREE, *pushes(written), orders={"s": STRICT})) == found


@pytest.mark.parametrize(
    ("state", "number", "found"),
    [("expired", 0, []), ("expired", 1, ["out-of-turn n1"]), ("dead", 0, ["out-of-turn n1"])],
)
def test_the_row_of_an_expired_untried_delivery_may_be_late(state: State, number: int, found: list[str]) -> None:
    report = checked(
        THREE,
        pushed("n2", "w-1", 1),
        pushed("n1", "", 50_000, state, number=number),
        pushed("n3", "w-2", 70_000),
        orders={"s": STRICT},
        apart_ms=25_000,
    )
    assert late(report) == found


def test_a_possible_repetition_after_a_crash_is_undecided() -> None:
    # The rows of the killed worker are lost: it may have pushed n1 before n2.
    report = checked(THREE, *pushes("n2 w-2, n1 x-1, n3 x-2"))
    assert (report.disordered, report.undecided, report.balanced) == (0, 1, True)
    assert "repetitions of attempts whose rows were lost" in report.notes[0]


@pytest.mark.parametrize(
    ("evaluations", "written_ms", "undecided"),
    [(THREE * 2, T0, 1), (THREE, T0 + 1, 1), (THREE, T0, 0)],
    ids=["evaluated twice", "accepted before the run", "accepted in the run"],
)
def test_a_possible_repetition_by_the_sender_of_the_later_one_is_undecided(
    evaluations: list[bytes], written_ms: int, undecided: int
) -> None:
    # The row of the killed worker is lost. The redelivery pushes n2, and n1 after its recovery.
    ledger = Ledger()
    for value in evaluations:
        ledger.add(value, written_ms)
    report = Report(T0, T0 + 1)
    with closing(OrderCheck(ledger, ledger.evaluations(), {"s": 0})) as check:
        for offset, each in enumerate(pushes("n2 r-1, n1 r-2")):
            check.add(Listed(b"", rows(each), offset, T0 + offset))
        check.report(report, 100)
    assert (report.disordered, report.undecided) == (1 - undecided, undecided)


def test_a_possible_repetition_is_undecided_if_others_pushed_after_the_crash() -> None:
    # w was killed after n1, and may have pushed n2. The redelivery then pushes n3, a new worker n2.
    before = (pushed("n0", "r-0"), pushed("n1", "w-1"))
    history = (*before, pushed("n3", "r-1", 16_000), pushed("n2", "x-1", 28_000))
    more = pushed("n3", "r-2", 40_000, number=2)
    report = checked(THREE, *history, more, apart_ms=12_000)
    assert (report.disordered, report.undecided) == (0, 1)
    # w wrote a row after the push of n3.
    alive = pushed("n1", "w-2", 24_000, number=2)
    assert late(checked(THREE, *history, alive, more, apart_ms=12_000)) == ["out-of-order n2"]


def test_a_possible_repetition_is_undecided_if_its_sender_was_not_the_last_of_the_lane() -> None:
    # w was killed soon after n1, and may have pushed n3. The redelivery pushes n2 before it, and n4 after it.
    four = [evaluation({"n1": 1, "n2": 1, "n3": 1, "n4": 1})]
    of_r = (pushed("n2", "r-1", 1), pushed("n4", "r-2", 2_000), pushed("n3", "x-1", 14_000))
    more = pushed("n4", "r-3", 40_000, number=2)
    report = checked(four, pushed("n1", "w-1"), *of_r, more, apart_ms=6_000)
    assert (report.disordered, report.undecided) == (0, 1)
    assert late(checked(four, *of_r, more, apart_ms=6_000)) == ["out-of-order n3"]


def test_each_topic_priority_and_subscription_has_its_own_order() -> None:
    turned = pushes("n2 w-1, n1 w-2")
    assert not checked(
        TOPICS, pushed("n2", "w-1", topic=TopicPath("b")), pushed("n1", "w-2", topic=TopicPath("a"))
    ).disordered
    assert not checked(URGENT, *pushes("n2 w-1, n1 w-2, n3 w-3")).disordered
    assert late(checked(URGENT, *pushes("n2 w-1, n3 w-2, n1 w-3"))) == ["out-of-order n1"]
    assert checked(URGENT, *turned, orders={"s": STRICT}).disordered == 1
    two = {"s": 0, "t": 0}
    assert not checked(THREE, pushed("n2", "w-1"), pushed("n1", "w-2", subscription="t"), orders=two).disordered
    assert not checked(THREE, *turned, orders={"s": UNORDERED}).first_attempts
    # Subscriptions that are no longer in the control log count; notifications outside the interval do not.
    report = checked(THREE, *turned, orders={})
    assert report.disordered == 1
    assert "1 subscriptions are not in the control log any more" in report.notes[0]
    assert not checked([], *turned).first_attempts
    assert checked(THREE, *pushes("n0 w-1, n1 w-2")).first_attempts == 1


def test_a_push_long_after_its_recorded_end_is_a_repetition() -> None:
    later, on = pushed("n1", "x-1", 70_000), pushed("n2", "w-2", 6_000)

    def found(*written: Attempt) -> list[str]:
        return late(checked(THREE, *written, apart_ms=6_000))

    assert found(pushed("n1", "w-1", 1), on, later) == ["repeated n1"]
    assert not found(pushed("n1", "w-1", 1), later), "a repetition after a crash"
    assert not found(pushed("n1", "w-1", 1), on, pushed("n1", "x-1", 50_000))
    assert not found(pushed("n1", "w-1", 1, "parked"), on, later)
    assert not found(pushed("n1", "w-1", 60_000), on, later), "the clock was set back"
    redriven = pushed("n1", "", 60_000, "parked", number=0, error="redriven")
    assert not found(pushed("n1", "w-1", 1, "dead"), on, redriven, later)


@pytest.mark.parametrize("seed", range(10))
def test_against_a_comparison_of_all_pairs(seed: int) -> None:
    chance = random.Random(seed)
    orders = {name: chance.choice((0, 0, STRICT)) for name in ("s", "t", "u")}
    evaluated, known = [], {}
    for offset in range(60):
        name, topic, priority = f"n{offset}", chance.choice("ab"), chance.choice((0, 0, 3))
        evaluated.append(evaluation({name: 1}, first=offset, topic=topic, priority=priority))
        known[name] = offset, topic, priority
    written: list[Attempt] = []
    names = sorted(known, key=lambda name: known[name][0] + chance.choice((0, 0, 0, 8)))
    for number, name in enumerate(names):
        for subscription in orders:
            made = pushed(name, f"w-{number}", number, "delivered", subscription, topic=TopicPath(known[name][1]))
            if chance.random() < 0.2:
                written.append(msgspec.structs.replace(made, state="parked"))
                later = min(number + chance.choice((1, 9)), len(names))
                written.append(msgspec.structs.replace(made, number=2, push=f"w-{later}"))
            else:
                written.append(made)
    expected = set()
    for subscription, order in orders.items():
        first = {each.notification: each for each in written if each.subscription == subscription and each.number == 1}
        last = {each.notification: each for each in written if each.subscription == subscription}
        for name, (offset, topic, priority) in known.items():
            until = last[name] if order == STRICT else first[name]
            for other, (later, same, rank) in known.items():
                alike = same == topic and (rank == priority or order != 0) and later > offset
                if alike and int(first[other].push[2:]) < int(until.push[2:]):
                    expected.add((subscription, name))
    report = checked(evaluated, *written, orders=orders)
    assert {(each.subscription, each.notification) for each in report.problems} == expected
    assert report.first_attempts == 180


def test_order_of_policies() -> None:
    for policy, order in (
        (DeliveryPolicy(), 0),
        (DeliveryPolicy(reliability="strict"), STRICT),
        (DeliveryPolicy(order="strict"), STRICT),
        (DeliveryPolicy(reliability="timely"), 0),
    ):
        made = make.subscription(policy=policy)
        assert order_of(made) == order
        assert order_of(msgspec.structs.replace(made, queue=1)) == UNORDERED
