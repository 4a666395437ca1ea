from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from arborcast.core.eventlog.scan import OffsetRange
from arborcast.dispatch.logs.attempts import State
from arborcast.dispatch.operations.audit.balance import Balance, balance
from arborcast.dispatch.operations.audit.ledger import EXPIRED, LAPSED, Ledger
from arborcast.dispatch.operations.audit.report import Tally
from arborcast.topic_model.topics import SYSTEM
from tests.support.written_attempts import T0, evaluation, row, rows

HOUR_MS = 3_600_000


def compared(*records: bytes, end: int | None = None, since_ms: int = T0, limit: int = 100) -> Balance:
    ledger = Ledger()
    for record in records:
        ledger.add(record)
    places = ledger.evaluations().offset
    last = int(places.max()) + 1 if len(places) else 0
    return balance(ledger, since_ms, T0 + HOUR_MS, {0: OffsetRange(0, last if end is None else end)}, limit)


def test_lapsed_messages_are_expired_without_a_dead_letter() -> None:
    ledger, lapsed = Ledger(), msgspec.structs.replace(row("n2", "s1", "expired"), lapsed=True)
    records = rows(row("n1", "s1", "expired"), lapsed)
    ledger.add(records)
    assert sorted(ledger.deliveries().state.tolist()) == [EXPIRED, LAPSED]
    report = compared(evaluation({"n1": 1, "n2": 1}), records).report
    assert (report.balanced, report.totals) == (True, Tally(expired=2))


def test_notices_replays_and_triggers_are_counted_apart() -> None:
    report = compared(
        evaluation({"n1": 1, "n2": 1, "n1~f00": 1}),
        rows(row("n1", "s1"), row("n2", "s1"), row("n1~f00", "s1")),
        evaluation({"e1": 0}, first=3, topic=f"{SYSTEM}/breaker/opened"),
        evaluation({"e2": 0}, first=4, topic=f"{SYSTEM}-of-mine"),
        evaluation({"t1": 0, "t2": 0}, first=5, topic=f"{SYSTEM}/breaker/opened", caused=True),
    ).report
    assert (report.notifications, report.published, report.system_notices, report.replays) == (7, 3, 1, 1)
    assert (report.triggered, report.as_json()["published"]) == (2, 3)


def test_the_notification_without_a_delivery_is_named() -> None:
    old = [f"old{each}" for each in range(300)]  # before the interval
    found = compared(
        evaluation(dict.fromkeys(old, 1), accepted_ms=T0 - 1),
        rows(*(row(each, "s1", accepted_ms=T0 - 1) for each in old)),
        evaluation({"n1": 1, "n2": 1}, first=300),
        rows(row("n1", "s1")),
        evaluation({"n3": 0}, batch=1, first=302),
    )
    (problem,) = found.report.problems
    assert (problem.kind, problem.notification, problem.offset) == ("missing", "n2", 301)
    assert found.evaluations.offset.tolist() == [300, 301, 302]
    assert found.report.totals == Tally(delivered=1)


ONE, TWO, LATER = evaluation({"n1": 1}), evaluation({"n1": 2}), evaluation({"n2": 0}, batch=1, first=1)
ONE_AFTER, TWO_AFTER = evaluation({"n1": 1}, control=20), evaluation({"n1": 2}, control=20)
S1, S2, BOTH = rows(row("n1", "s1")), rows(row("n1", "s2")), rows(row("n1", "s1"), row("n1", "s2"))
DEAD = rows(row("n1", "s1", "dead"))
# A redrive has a new time of acceptance, hence the whole lifespan.
REDRIVEN = rows(row("n1", "s1", "parked", -1, error="redriven", accepted_ms=T0 + HOUR_MS // 2))
# A trigger published it again after a crash: it was delivered, and its second position needs no delivery.
CAUSED, CAUSED_AGAIN = evaluation({"n1": 2}, caused=True), evaluation({"n1": 2}, first=5, caused=True)


@pytest.mark.parametrize(
    ("records", "expected", "duplicates", "totals"),
    [
        ([], [], 0, Tally()),
        ([TWO, LATER], [("missing", 2, 0)], 0, Tally()),
        ([TWO, S1], [("unfinished", 2, 1)], 0, Tally(delivered=1)),  # its batch is the newest
        ([ONE, BOTH], [("surplus", 1, 2)], 0, Tally(delivered=2)),
        ([BOTH], [("unmatched", 0, 2)], 0, Tally()),
        # A delivery that has ended stays so if the batch later records it as parked.
        ([ONE, rows(row("n1", "s1", "delivered", -1)), rows(row("n1", "s1", "parked"))], [], 0, Tally(delivered=1)),
        ([ONE, DEAD, REDRIVEN], [], 0, Tally(pending=1)),
        ([ONE, DEAD, REDRIVEN, rows(row("n1", "s1", "delivered", -1))], [], 0, Tally(delivered=1)),
        ([ONE, DEAD, REDRIVEN, rows(row("n1", "s1", "dead", -1))], [], 0, Tally(dead=1)),
        ([ONE, rows(row("n1", "s1", "dead"), row("n1", "s1", "dead", -1, error="purged"))], [], 0, Tally(dead=1)),
        # An interrupted batch is evaluated again.
        ([TWO, S1, TWO, S2], [], 0, Tally(delivered=2)),
        ([ONE, S1, ONE, S1], [], 1, Tally(delivered=1)),
        ([TWO, S1, TWO, S1], [("unfinished", 2, 1)], 1, Tally(delivered=1)),
        ([ONE, S1, TWO_AFTER, S2], [], 0, Tally(delivered=2)),  # a subscription was added in between
        ([ONE, S1, TWO_AFTER], [("unfinished", 2, 1)], 0, Tally(delivered=1)),
        ([TWO, BOTH, ONE_AFTER], [], 0, Tally(delivered=2)),  # a subscription ended in between
        ([TWO, ONE_AFTER, S1], [], 0, Tally(delivered=1)),
        # A current message is in the log twice, and reaches a new subscriber twice.
        ([TWO, BOTH, evaluation({"n1": 1}, batch=1, first=1), rows(row("n1", "s2", batch=1))], [], 1, None),
        ([CAUSED, CAUSED_AGAIN, BOTH], [], 0, Tally(delivered=2)),
        ([CAUSED, CAUSED_AGAIN, BOTH, BOTH], [], 2, Tally(delivered=2)),
        ([CAUSED, CAUSED_AGAIN, S1, evaluation({"n2": 0}, batch=9, first=6)], [("missing", 2, 1)], 0, None),
    ],
)
def test_imbalances_are_named(
    records: list[bytes], expected: list[tuple[str, int, int]], duplicates: int, totals: Tally | None
) -> None:
    report = compared(*records, end=1 if CAUSED in records else None).report
    assert [(each.kind, each.matched, each.found) for each in report.problems] == expected
    assert report.balanced is not bool(expected)
    assert report.duplicates == duplicates
    assert totals in (None, report.totals)
    assert expected or report.matches == report.totals.matches or totals is None


def test_deliveries_without_an_evaluation_within_the_interval() -> None:
    times = {"n1": T0 - 1, "n2": T0, "n3": T0 + HOUR_MS - 1, "n4": T0 + HOUR_MS}
    report = compared(rows(*(row(name, "s1", accepted_ms=at) for name, at in times.items()))).report
    assert sorted(each.accepted_ms for each in report.problems) == [T0, T0 + HOUR_MS - 1]
    assert report.unbalanced == 2
    # Redrives of letters from before the interval are ignored.
    redriven = rows(row("n1", "s1", "parked", -1, error="redriven")), rows(row("n1", "s1", "delivered", -1))
    assert (compared(*redriven).report.balanced, compared(*redriven).report.notifications) == (True, 0)


def test_the_interval_applies_to_each_partition() -> None:
    ledger = Ledger()
    ledger.add(evaluation({"n1": 0, "n2": 0, "n3": 0, "n4": 0, "n5": 0}, offsets=[0, 3, 6, 7, 8]))
    ledger.add(evaluation({"m1": 0, "m2": 0}, partition=1, offsets=[1, 3]))
    stretches = {0: OffsetRange(2, 7), 1: OffsetRange(1, 5), 2: OffsetRange(4, 6)}
    gaps = [(0, 2), (0, 4), (0, 5), (1, 2)]
    for limit in (2, 3, 100):
        found = balance(ledger, T0, T0 + HOUR_MS, stretches, limit)
        assert (found.gaps, found.gap_count) == (gaps[:limit], 4)
        assert found.report.waiting == 0 + 1 + 2, "records behind the last evaluated one are waiting"
    unseen = compared(end=5)
    assert (unseen.report.waiting, unseen.gap_count) == (5, 0)


def test_all_problems_are_counted_and_some_are_named() -> None:
    names = [f"n{each}" for each in range(50)]
    delivered = rows(*(row(name, "s1") for name in names))
    for surplus, records in (
        (0, [evaluation(dict.fromkeys(names, 1))]),
        (50, [evaluation(dict.fromkeys(names, 0)), delivered]),
        (0, [delivered]),
    ):
        report = compared(*records, limit=3).report
        assert (report.unbalanced, report.surplus, len(report.problems)) == (50, surplus, 3)


def test_random_histories_against_a_simple_count() -> None:
    """Thousands of deliveries in any order, with intermediate merges of columns."""
    chance = random.Random(5)
    states: list[State] = ["delivered", "parked", "dead", "expired", "cancelled", "dropped"]
    expected: dict[tuple[str, str], State] = {}
    ledger, written = Ledger(), 0
    for batch in range(20):
        counts = {f"n{batch}.{each}": chance.randrange(4) for each in range(30)}
        ledger.add(evaluation(counts, batch=batch, first=30 * batch))
        ends = {
            (name, f"s{number}"): chance.choice(states) for name, count in counts.items() for number in range(count)
        }
        expected |= ends
        if ends:
            ledger.add(rows(*(row(*key, state, batch) for key, state in ends.items())))
        waiting = [key for key, state in expected.items() if state == "parked"]
        again = chance.sample(waiting, min(8, len(waiting)))
        for key in again:
            expected[key] = chance.choice(states[:4])
            ledger.add(rows(row(*key, expected[key], -1)))
        written += len(ends) + len(again)
        if batch % 5 == 0:
            ledger.deliveries()

    def tally(name: str = "") -> Tally:
        found = Counter(state for (_, to), state in expected.items() if name in ("", to))
        return Tally(**{"pending" if state == "parked" else state: found[state] for state in states})

    report = balance(ledger, T0, T0 + HOUR_MS, {0: OffsetRange(0, 600)}).report
    assert report.balanced
    assert (report.notifications, report.waiting, report.duplicates, report.rows) == (600, 0, 0, written)
    assert report.matches == report.totals.matches == len(expected)
    assert report.totals == tally()
    assert report.subscriptions == {name: tally(name) for name in ("s0", "s1", "s2")}
