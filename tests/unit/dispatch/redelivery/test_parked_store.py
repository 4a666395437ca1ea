from __future__ import annotations

import itertools
import re
import sqlite3
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from arborcast.core.errors import InfrastructureError, RecordVersionError
from arborcast.core.wall_clock import TOLERANCE_MS
from arborcast.dispatch.delivery.journal import Journal
from arborcast.dispatch.delivery.verdict import policy_of
from arborcast.dispatch.logs import parked
from arborcast.dispatch.logs.attempts import NO_BATCH, Attempt
from arborcast.dispatch.logs.parked import Delivery, Parked, Place, Tried, Tries
from arborcast.dispatch.queues.backlog import Backlog
from arborcast.dispatch.redelivery import parked_store
from arborcast.dispatch.redelivery.lanes import DueDeliveries, RetryLane
from arborcast.dispatch.redelivery.parked_store import ParkedStore, UnusableFile, WaitingDelivery, newest_batch
from arborcast.dispatch.redelivery.pushes import RedeliveryOutcomes
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import DeliveryPolicy, Peer
from tests.support.make import notification, subscription

UNTRIED = Tries()


def delivery(offset: int, lane: str = "s", batch: int = 1, partition: int = 0) -> Delivery:
    return Delivery(lane, Place(batch, partition, offset))


ONE, TWO = delivery(1), delivery(2)
OFFSETS = itertools.count()


def park(store: ParkedStore, which: Delivery, tries: Tries = UNTRIED, **facts: Any) -> str | None:
    record = Parked(notification(f"n{which.place.offset}", **facts), tries)
    return store.apply(which.key(), parked.encode(record), next(OFFSETS))


def offsets(found: list[WaitingDelivery] | list[Delivery]) -> list[int]:
    return [(each.delivery if isinstance(each, WaitingDelivery) else each).place.offset for each in found]


@pytest.fixture
def store() -> Iterator[ParkedStore]:
    opened = ParkedStore(None)
    yield opened
    opened.close()


def park_all(store: ParkedStore, *deliveries: tuple[int, Tries], **facts: Any) -> None:
    for offset, tries in deliveries:
        park(store, delivery(offset), tries, **facts)


def test_order_of_untried_deliveries(store: ParkedStore) -> None:
    park(store, delivery(5, batch=7, partition=1))
    assert offsets(store.first("s")) == [5]
    # Its push may be in flight at a crash: deliveries of other partitions come behind it.
    park(store, delivery(8, batch=3))
    park(store, delivery(9, batch=7, partition=1))
    park(store, delivery(6, batch=3))  # in order within its partition
    park(store, delivery(4, batch=7, partition=2))
    assert offsets(store.untried("s", 9)) == [5, 6, 8, 9, 4]


def test_priority_of_untried_deliveries(store: ParkedStore) -> None:
    for offset, priority in ((1, 0), (2, 5), (3, -5), (4, 5), (5, 0), (6, 100)):
        park(store, delivery(offset), priority=priority)
    park(store, delivery(7, lane="other"), priority=100)
    assert offsets(store.untried("s", 9)) == [6, 2, 4, 1, 5, 3]
    assert offsets(store.untried("s", 2)) == [6, 2]
    # A delivery parked later is not put before one of equal priority and another partition, which may be in flight.
    park(store, delivery(8, partition=1), priority=5)
    park(store, delivery(0), priority=5)
    assert offsets(store.untried("s", 9)) == [6, 0, 2, 4, 8, 1, 5, 3]


def test_the_first_of_a_strict_lane(store: ParkedStore) -> None:
    def first() -> list[int]:
        return offsets(store.first("s"))

    assert first() == []
    park(store, delivery(3), priority=5)
    park(store, TWO)
    assert first() == [2], "independent of the priority"
    assert store.tried(TWO, Tries(1, 1, 5))
    park(store, ONE)  # a repeated batch in another order
    assert first() == [2]
    store.remove(TWO)
    assert first() == [1]
    park(store, delivery(4), Tries(1, 1, 900), priority=-5)
    assert first() == [4]


def test_deliveries_over_a_link_are_pushed_together_in_order(store: ParkedStore) -> None:
    """Failed deliveries are repeated together, without later ones."""
    plain = subscription(policy=DeliveryPolicy("strict"))
    link = msgspec.structs.replace(plain, form="peer", peer=Peer("G/a", "G/b"))
    for offset in range(1, 4):
        park(store, delivery(offset), priority=offset)
    due, lane = DueDeliveries(store, PushSettings()), RetryLane("s")
    assert offsets(due.of(lane, link, 1_000, probing=False)) == [1, 2, 3]
    assert offsets(due.of(lane, link, 1_000, probing=True)) == [1]
    assert offsets(due.of(lane, plain, 1_000, probing=False)) == [1]
    for offset in (1, 2):
        store.tried(delivery(offset), Tries(1, 1, 2_000))
    assert due.of(lane, link, 1_000, probing=False) == []
    assert offsets(due.of(lane, link, 2_000, probing=False)) == [1, 2]
    lane.flight.add(ONE)
    assert due.of(lane, link, 3_000, probing=False) == []


def test_the_newest_batch_is_read_during_a_write(tmp_path: Path) -> None:
    file = tmp_path / "parked #1.sqlite"
    with pytest.raises(InfrastructureError):
        newest_batch(file)
    with closing(ParkedStore(file)) as store:
        store.commit()
        assert newest_batch(file) == NO_BATCH
        for which in (delivery(1, batch=7), delivery(2, lane="t", batch=10**12), delivery(3, batch=9)):
            park(store, which)
        store.commit()
        assert newest_batch(file) == 10**12
        store.remove(delivery(2, lane="t", batch=10**12))
        again = delivery(4, batch=10)
        park(store, again._replace(place=again.place._replace(redrive=1)))
        store.commit()
        assert (newest_batch(file), newest_batch(file, redriven=False)) == (10, 9)


def test_a_delivery_parked_twice_keeps_its_tries(store: ParkedStore) -> None:
    park(store, ONE)
    store.tried(ONE, Tries(2, 1, 50))

    assert park(store, ONE) is None
    store.apply(ONE.tried_key(), parked.encode(Tried(Tries(1, 1, 10))), next(OFFSETS))  # an older record
    (waiting,) = store.due("s", 50, 10)
    assert (waiting.tries, store.count) == (Tries(2, 1, 50), 1)


def test_tried_deliveries_when_they_are_due(store: ParkedStore) -> None:
    numbers = ((1, 5, 30), (2, 1, 99), (3, 3, 10), (4, 3, 5))
    park_all(store, *((offset, Tries(number, number, due)) for offset, number, due in numbers))
    park(store, delivery(5))
    three, four = delivery(3), delivery(4)
    assert offsets(store.due("s", 40, 10)) == [4, 3, 1], "the earliest due time first"
    assert offsets(store.due("s", 40, 1, {four})) == [3]
    assert store.next_due_ms("s") == 5
    assert store.next_due_ms("s", {ONE, three, four}) == 99
    assert offsets(store.untried("s", 10)) == [5]

    def least(now_ms: int, *excluded: Delivery) -> int | None:
        found = store.least_tried("s", now_ms, excluded)
        return found and found.delivery.place.offset

    assert (least(30), least(99), least(30, four, three), least(-1)) == (4, 2, 1, None)


def test_deliveries_tried_in_the_future_are_due_last(store: ParkedStore) -> None:
    """The clock was set back."""
    later = Tries(1, 1, 110_000, 100_000 + TOLERANCE_MS)
    tries = (Tries(2, 2, 900_000, 600_000), Tries(3, 3, 800_000, 500_000), Tries(4, 4, 10, 5), later)
    park_all(store, *enumerate(tries, 1))

    def due(limit: int, *excluded: Delivery) -> list[int]:
        return offsets(store.due("s", 100_000, limit, excluded))

    assert (due(10), due(2), due(1, delivery(3)), due(9, TWO)) == ([3, 2, 1], [3, 2], [2], [3, 1])
    assert due(9, ONE, TWO, delivery(3)) == []
    least = [store.least_tried("s", 100_000, excluded) for excluded in ((), {delivery(3)}, {delivery(3), TWO})]
    assert offsets([each for each in least if each]) == [3, 2, 1]


def test_end_of_the_oldest_lifespan(store: ParkedStore) -> None:
    park(store, ONE, accepted_ms=300)
    park(store, TWO, Tries(1, 1, 5), accepted_ms=100)
    park(store, delivery(3), accepted_ms=200)
    ages = [store.expires_ms(lane, 1_000, excluded) for lane, excluded in (("s", ()), ("s", {TWO}), ("t", ()))]
    assert ages == [1_100, 1_200, None]
    assert offsets(store.accepted_before("s", 200, 10)) == [2, 3]
    assert offsets(store.accepted_before("s", 200, 1, {TWO})) == [3]


def test_end_of_the_earliest_validity(store: ParkedStore) -> None:
    park(store, ONE, accepted_ms=300, valid_until_ms=900)
    park(store, TWO, Tries(1, 1, 5), accepted_ms=200, valid_until_ms=800)
    park(store, delivery(3), accepted_ms=250)

    found = [store.valid_until("s", ms, most, out) for ms, most, out in ((799, 9, ()), (900, 9, ()), (900, 1, {TWO}))]
    assert list(map(offsets, found)) == [[], [2, 1], [1]]
    assert [store.expires_ms("s", 1_000, out) for out in ((), {TWO}, {ONE, TWO})] == [800, 900, 1_250]
    assert store.expires_ms("s", 500) == 700
    # An accepted delivery does not expire before the time of its result.
    assert store.tried(ONE, Tries(1, 1, 2_000, 400, "push"))
    assert offsets(store.valid_until("s", 900, 10)) == [2]
    assert store.tried(ONE, Tries(2, 2, 2_000, 500))
    assert offsets(store.valid_until("s", 900, 10)) == [2, 1]


def test_finished_deliveries_are_removed(store: ParkedStore) -> None:
    park(store, ONE)
    assert store.tried(ONE, Tries(1, 1, 5))
    store.apply(ONE.tried_key(), None, next(OFFSETS))
    assert store.count == 1

    store.apply(ONE.key(), None, next(OFFSETS))
    store.apply(ONE.key(), None, next(OFFSETS))  # repeated, as after a restart

    assert (store.count, list(store.lanes()), store.has_untried("s")) == (0, [], False)
    assert not store.tried(ONE, Tries(2, 2, 9))

    park(store, TWO)
    store.finish(TWO)
    assert park(store, TWO) is None, "a record before its tombstone"
    store.apply(TWO.key(), None, next(OFFSETS))
    assert park(store, TWO) == "s"


def test_a_restart_has_the_committed_state(tmp_path: Path) -> None:
    file = tmp_path / "new" / "parked.db"
    first = ParkedStore(file, "log")
    park(first, ONE)
    first.advance(0, 11)
    first.remember("health", b"\x00x")
    first.commit()
    park(first, TWO)
    first.advance(0, 12)
    first.close()

    second = ParkedStore(file, "log")

    assert (offsets(second.untried("s", 10)), second.count, second.positions()) == ([1], 1, {0: 11})
    second.forget()
    assert (second.count, second.positions(), second.untried("s", 9)) == (0, {}, [])
    assert (second.recall("health"), second.recall("nothing")) == (b"\x00x", None), "facts are kept"
    assert park(second, ONE) == "s"
    second.close()


def test_unusable_files_are_named(tmp_path: Path) -> None:
    ParkedStore(tmp_path / "one.db", "one").close()
    (tmp_path / "torn.db").write_bytes(b"torn" * 5_000)
    for name, found in (("one.db", "one.db, is that of another log"), ("torn.db", r"torn\.db")):
        with pytest.raises(UnusableFile, match=found):
            ParkedStore(tmp_path / name, "log")
    with pytest.raises(InfrastructureError, match="torn"):
        ParkedStore(tmp_path / "torn.db" / "parked.db")


class Recorded:
    """The indexes of the statements that a connection executes."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database, self.used = database, list[str]()

    def execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        if statement.startswith("SELECT"):
            for *_, step in self._database.execute(f"EXPLAIN QUERY PLAN {statement}", values):
                assert not re.match("SCAN|USE TEMP B-TREE", step), statement
                self.used += re.findall(r"INDEX waiting_(\w+)", step)
        return self._database.execute(statement, values)


@pytest.mark.parametrize(
    ("read", "indexes"),
    [
        (lambda store: park(store, TWO), "place"),
        (lambda store: store.first("s"), "turn turn"),
        (lambda store: store.untried("s", 1), "priority"),
        (lambda store: store.has_untried("s"), "turn"),
        (lambda store: store.oldest_untried("s", 1), "turn"),
        (lambda store: store.due("s", 5, 1), "due decided"),
        (lambda store: store.least_tried("s", 5), "tries decided"),
        (lambda store: store.next_due_ms("s"), "due"),
        (lambda store: store.accepted_before("s", 5, 1), "age"),
        (lambda store: store.valid_until("s", 5, 1), "valid"),
        (lambda store: store.expires_ms("s", 5), "age valid"),
        (lambda store: store.awaiting("s", "p"), "awaits"),
        (lambda store: list(store.equal(WaitingDelivery(ONE, UNTRIED, notification(merge=b"m")), None, 9)), "merge"),
        (lambda store: Backlog(store).next("s", "r", 5), "server server priority"),
        (lambda store: Backlog(store).anything("t", 5), "turn again"),
        (lambda store: Backlog(store).served("t", ["r"], 5), "turn server server"),
        (lambda store: Backlog(store).next_due_ms("s"), "again"),
        (lambda store: list(Backlog(store).refused_by_all("s", "r")), "refused"),
    ],
)
def test_each_query_uses_its_index(store: ParkedStore, read: Callable[[ParkedStore], object], indexes: str) -> None:
    park(store, ONE)
    recorded = store._db = cast(Any, Recorded(store._db))
    read(store)
    store._db = recorded._database
    assert recorded.used == indexes.split()


MB = 1024 * 1024


def test_reads_are_bounded_in_bytes(store: ParkedStore) -> None:
    park_all(store, *((offset, UNTRIED) for offset in range(10)), payload=b"x" * MB)
    for offset in (0, 1):
        park(store, delivery(offset, "huge"), payload=b"x" * 6 * MB)

    assert offsets(store.untried("s", 500)) == offsets(store.first("s", 500)) == [0, 1, 2]
    assert offsets(store.untried("huge", 500)) == [0], "at least one"
    for offset in (0, 1):
        assert store.tried(delivery(offset), Tries(1, 1, 5 + offset))
    assert offsets(store.due("s", 10, 1, {delivery(0)})) == [1]


def test_messages_in_flight_are_not_read_for_the_next_one(store: ParkedStore) -> None:
    """Each turn of a lane would read all of them again."""
    in_flight, following = delivery(0), delivery(1)
    park(store, in_flight, Tries(1, 1, 5), payload=b"x" * 6 * MB)
    park(store, following, Tries(1, 1, 6))
    tracemalloc.start()
    try:
        least = store.least_tried("s", 10, {in_flight})
        found = offsets([least] if least else []) + offsets(store.due("s", 10, 1, {in_flight}))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert found == [1, 1]
    assert peak < MB


def test_damaged_records_are_skipped_and_newer_ones_refused(store: ParkedStore) -> None:
    park(store, ONE)
    assert store.apply(b"no delivery", None, 10) is None
    assert store.apply(TWO.key(), b"\xc1", 11) is None
    assert store.apply(ONE.key(), b"\xc1", 12) is None
    newer = msgspec.msgpack.encode({"v": parked.VERSION + 1, "record": {}})
    with pytest.raises(RecordVersionError):
        store.apply(TWO.key(), newer, 13)
    assert offsets(store.untried("s", 9)) == [1]


def test_the_file_shrinks_after_many_removals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_store, "_FREE_PAGES", 800)
    monkeypatch.setattr(parked_store, "_FREED_PAGES", 100)
    file = tmp_path / "parked.sqlite"
    with closing(ParkedStore(file)) as store:
        park_all(store, *((offset, UNTRIED) for offset in range(8)), payload=b"x" * MB)
        store.commit()
        assert file.stat().st_size > 8 * MB
        for offset in range(8):
            store.remove(delivery(offset))
        for _ in range(20):
            store.commit()
    assert file.stat().st_size < 4 * MB


class Ended(Journal):
    """A journal that counts states and keeps nothing."""

    def __init__(self) -> None:
        self.states: Counter[str] = Counter()

    def record(self, row: Attempt) -> None:
        self.states[row.state] += 1

    def write_dead_letter(self, delivery: Delivery, notification: Notification, row: Attempt) -> None:
        self.record(row)

    def finished(self, delivery: Delivery, tried: bool) -> None:
        """Not recorded."""


@pytest.mark.parametrize("how", ["cancelled", "expired", "dropped"])
def test_memory_to_end_many_deliveries_is_bounded(how: str, tmp_path: Path) -> None:
    count, journal = 40, Ended()
    with closing(ParkedStore(tmp_path / "parked.sqlite")) as store:
        park_all(store, *((offset, UNTRIED) for offset in range(count)), payload=b"x" * MB)
        store.commit()
        alarm = cast(Any, SimpleNamespace(died=lambda *_: None))
        outcomes = RedeliveryOutcomes(store, cast(Any, journal), lambda: 0.0, alarm)
        lane, policy = RetryLane("s"), policy_of(DeliveryPolicy(lifespan_ms=1_000), RetrySettings())
        tracemalloc.start()
        try:
            match how:
                case "cancelled":
                    outcomes.cancel(lane, 5_000)
                case "expired":
                    outcomes.expire(lane, policy, 5_000)
                case _:
                    outcomes.drop_excess(lane, cast(Any, SimpleNamespace(too_much=lambda _: "too much")), 5_000)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert store.count == 0
    assert journal.states == {how: count}
    assert peak < 20 * MB


def test_a_later_record_of_equal_tries_requests_an_attempt(store: ParkedStore) -> None:
    park(store, ONE, Tries(2, 1, 9_000, 5_000))

    def write(tries: Tries) -> set[str]:
        store.apply(ONE.tried_key(), parked.encode(Tried(tries)), next(OFFSETS))
        requested, store.requested = store.requested, set()
        return requested

    assert write(Tries(2, 1, 9_000, 5_000)) == set(), "the redelivery's own record"
    assert write(Tries(1, 1, 6_000, 6_000)) == set(), "of an earlier attempt"
    assert write(Tries(2, 1, 7_000, 6_000, "p")) == set(), "a push"
    assert write(Tries(2, 1, 9_000, 5_000).requested(6_000)) == {"s"}
    assert (store.next_due_ms("s"), store.has(ONE)) == (6_000, True)
    assert write(Tries(2, 1, 8_000, 8_000)) == {"s"}, "of a clock ahead"
    assert store.next_due_ms("s") == 6_000, "not due later"
    store.tried(ONE, Tries(3, 2, 20_000, 8_000, "p"))
    assert write(Tries(3, 2, 9_000, 9_000)) == set(), "a later result is awaited"
    store.remove(ONE)
    assert write(Tries(3, 2, 9_000, 9_000)) == set()
    # An untried delivery stays untried.
    park(store, TWO)
    store.apply(TWO.tried_key(), parked.encode(Tried(UNTRIED.requested(6_000))), next(OFFSETS))
    assert store.requested == {"s"}
    (untried,) = store.untried("s", 9)
    assert untried.tries == Tries(0, 0, 6_000, 6_000)
