"""The order of pushes as the audit derives it from rows: against logs written by hand, and against a comparison of each
pair of deliveries."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pytest

from arborcast.dispatch.logs.attempts import Attempt, State
from arborcast.dispatch.operations.audit.ledger import Ledger
from arborcast.dispatch.operations.audit.order import STRICT, UNORDERED, OrderCheck, order_of
from arborcast.dispatch.operations.audit.report import Report
from arborcast.topic_model.subscriptions import DeliveryPolicy, EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.written_attempts import T0, evaluation, row, rows


@dataclass
class Written:
    """A record of the attempts log."""

    value: bytes | None
    offset: int
    timestamp: int
    partition: int = 0
    key: bytes = b""


def pushed(
    notification: str,
    push: str,
    started_ms: int = 0,
    state: State = "delivered",
    number: int = 1,
    subscription: str = "s",
    topic: str = "a/b",
    error: str = "",
) -> Attempt:
    """A row of one push."""
    made = row(notification, subscription, state)
    return msgspec.structs.replace(
        made, push=push, number=number, started_ms=T0 + started_ms, topic=TopicPath(topic), error=error
    )


def checked(
    evaluations: Sequence[bytes], *written: Attempt, orders: Mapping[str, int] | None = None, apart_ms: int = 10
) -> Report:
    """The report on these rows, each a record of its own, written one after the other."""
    ledger = Ledger()
    for value in (*evaluations, *(rows(each) for each in written)):
        ledger.add(value)
    check = OrderCheck(ledger, ledger.evaluations(), {"s": 0} if orders is None else orders)
    report = Report(T0, T0 + 1)
    try:
        for offset, each in enumerate(written):
            check.add(Written(rows(each), offset, T0 + offset * apart_ms))
        check.report(report, 100)
    finally:
        check.close()
    return report


def late(report: Report) -> list[tuple[str, str]]:
    return [(each.kind, each.notification) for each in report.problems]


THREE = [evaluation({"n1": 1, "n2": 1, "n3": 1})]


def test_one_that_a_later_one_has_overtaken_is_named_alone() -> None:
    report = checked(THREE, pushed("n2", "w-1", 1), pushed("n3", "w-2", 2), pushed("n1", "w-3", 3))
    assert late(report) == [("out-of-order", "n1")]
    (problem,) = report.problems
    assert (problem.subscription, problem.topic, problem.partition, problem.offset) == ("s", "a/b", 0, 0)
    assert (report.unbalanced, report.disordered) == (1, 1)


def test_messages_of_one_push_are_in_order() -> None:
    assert not checked(THREE, *(pushed(each, "w-1", 1) for each in ("n3", "n2", "n1"))).disordered


def test_an_attempt_that_may_be_a_repetition_behind_a_crash_is_undecided() -> None:
    # The worker has written nothing more: that it had pushed n1 before n2 may be lost with it.
    report = checked(THREE, pushed("n2", "w-2", 1), pushed("n1", "x-1", 2), pushed("n3", "x-2", 3))
    assert (report.disordered, report.undecided, report.balanced) == (0, 1, True)
    assert "repetitions of attempts whose rows were lost" in report.notes[0]


def test_retries_repetitions_redrives_and_what_was_not_pushed_are_no_first_attempts() -> None:
    retried = (pushed("n1", "w-1", 1, "parked"), pushed("n2", "w-2", 2), pushed("n1", "w-3", 3, number=2))
    assert not checked(THREE, *retried).disordered
    again = (pushed("n1", "w-1", 1), pushed("n2", "w-2", 2), pushed("n1", "w-3", 3))
    assert not checked(THREE, *again).disordered
    redriven = (
        pushed("n1", "w-1", 1, "dead"),
        pushed("n2", "w-2", 2),
        pushed("n1", "", 3, "parked", number=0, error="redriven"),
        pushed("n1", "w-3", 4),
    )
    assert not checked(THREE, *redriven).disordered
    never_pushed = (
        pushed("n1", "", 1, "dead", number=0),
        pushed("n2", "w-2", 2),
        pushed("n1", "", 3, "parked", number=0, error="redriven"),
        pushed("n1", "w-3", 4),
    )
    assert not checked(THREE, *never_pushed).disordered
    untried = (pushed("n2", "w-1", 2), pushed("n1", "", 3, "expired", number=0))
    assert not checked(THREE, *untried).disordered


def test_each_topic_priority_and_subscription_has_its_own_order() -> None:
    topics = [evaluation({"n1": 1}, topic="a"), evaluation({"n2": 1}, first=1, topic="b")]
    assert not checked(topics, pushed("n2", "w-1", topic="b"), pushed("n1", "w-2", topic="a")).disordered
    urgent = [evaluation({"n1": 1}), evaluation({"n2": 1}, first=1, priority=5), evaluation({"n3": 1}, first=2)]
    assert not checked(urgent, pushed("n2", "w-1"), pushed("n1", "w-2"), pushed("n3", "w-3")).disordered
    assert late(checked(urgent, pushed("n2", "w-1"), pushed("n3", "w-2"), pushed("n1", "w-3"))) == [
        ("out-of-order", "n1")
    ]
    assert checked(urgent, pushed("n2", "w-1"), pushed("n1", "w-2"), orders={"s": STRICT}).disordered == 1
    two = {"s": 0, "t": 0}
    assert not checked(THREE, pushed("n2", "w-1"), pushed("n1", "w-2", subscription="t"), orders=two).disordered
    assert not checked(THREE, pushed("n2", "w-1"), pushed("n1", "w-2"), orders={"s": UNORDERED}).first_attempts


def test_a_strict_subscription_gets_a_message_once_the_one_before_it_has_ended() -> None:
    strict = {"s": STRICT}
    waited = (pushed("n1", "w-1", 1, "parked"), pushed("n1", "w-2", 2, number=2), pushed("n2", "w-3", 3))
    assert not checked(THREE, *waited, orders=strict).disordered
    passed = (pushed("n1", "w-1", 1, "parked"), pushed("n2", "w-2", 2), pushed("n1", "w-3", 3, number=2))
    assert late(checked(THREE, *passed, orders=strict)) == [("out-of-turn", "n1")]
    assert not checked(THREE, *passed).disordered
    again = (pushed("n1", "w-1", 1), pushed("n2", "w-2", 2), pushed("n1", "w-3", 3, number=2))
    assert not checked(THREE, *again, orders=strict).disordered, "it had ended, and was repeated"
    waiting = (pushed("n1", "w-1", 1, "parked"), pushed("n2", "w-2", 2))
    assert not checked(THREE, *waiting, orders=strict).disordered, "no row shows that it is pushed again"


def test_a_push_long_after_its_end_was_recorded_is_a_repetition_without_a_reason() -> None:
    later, on = pushed("n1", "x-1", 70_000), pushed("n2", "w-2", 6_000)

    def found(*written: Attempt) -> list[tuple[str, str]]:
        return late(checked(THREE, *written, apart_ms=6_000))

    assert found(pushed("n1", "w-1", 1), on, later) == [("repeated", "n1")]
    assert not found(pushed("n1", "w-1", 1), later), "a crash right behind it"
    assert not found(pushed("n1", "w-1", 1), on, pushed("n1", "x-1", 50_000))
    assert not found(pushed("n1", "w-1", 1, "parked"), on, later)
    assert not found(pushed("n1", "w-1", 60_000), on, later), "its clock was put back"
    redriven = pushed("n1", "", 60_000, "parked", number=0, error="redriven")
    assert not found(pushed("n1", "w-1", 1, "dead"), on, redriven, later)


def test_records_without_a_priority_prove_the_order_of_strict_subscriptions_only() -> None:
    old = [evaluation({"n1": 1, "n2": 1}, priority=None)]
    report = checked(old, pushed("n2", "w-1"), pushed("n1", "w-2"))
    assert (report.first_attempts, report.disordered) == (0, 0)
    assert "2 notifications were evaluated by an earlier version" in report.notes[0]
    assert checked(old, pushed("n2", "w-1"), pushed("n1", "w-2"), orders={"s": STRICT}).disordered == 1


def test_subscriptions_that_the_control_log_has_no_more_are_counted() -> None:
    report = checked(THREE, pushed("n2", "w-1"), pushed("n1", "w-2"), orders={})
    assert report.disordered == 1
    assert "1 subscriptions are not in the control log any more" in report.notes[0]


def test_rows_of_notifications_outside_of_the_interval_are_passed_over() -> None:
    assert not checked([], pushed("n2", "w-1"), pushed("n1", "w-2")).first_attempts
    assert checked(THREE, pushed("n0", "w-1"), pushed("n1", "w-2")).first_attempts == 1


@pytest.mark.parametrize("seed", range(40))
def test_it_finds_what_a_comparison_of_all_pairs_finds(seed: int) -> None:
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
            made = pushed(name, f"w-{number}", number, "delivered", subscription=subscription, topic=known[name][1])
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
                if alike and _number(first[other]) < _number(until):
                    expected.add((subscription, name))
    report = checked(evaluated, *written, orders=orders)
    assert {(each.subscription, each.notification) for each in report.problems} == expected
    assert report.first_attempts == 180


def _number(each: Attempt) -> int:
    return int(each.push.partition("-")[2])


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        (DeliveryPolicy(), 0),
        (DeliveryPolicy(reliability="strict"), STRICT),
        (DeliveryPolicy(order="strict"), STRICT),
        (DeliveryPolicy(reliability="timely"), 0),
    ],
)
def test_the_order_of_a_subscription_is_that_of_its_policy(policy: DeliveryPolicy, order: int) -> None:
    made = Subscription("s", EndpointReference("http://r/"), policy=policy)
    assert order_of(made) == order
    assert order_of(msgspec.structs.replace(made, queue=1)) == UNORDERED
