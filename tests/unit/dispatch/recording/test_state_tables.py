"""Tables of states: records in memory, real Delta tables."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs import dead_letters
from arborcast.dispatch.logs.dead_letters import DeadLetter
from arborcast.dispatch.logs.parked import Delivery, Place, Tries
from arborcast.dispatch.recording import follower, state_tables
from arborcast.dispatch.recording.folds import (
    DeadLettersFold,
    IncompleteFold,
    OperationsFold,
    RetriesFold,
    SubscriptionsFold,
    SuspensionsFold,
    TopicsFold,
)
from arborcast.dispatch.recording.state_tables import FoldedTables, RowChanges, TableFold
from arborcast.dispatch.redelivery.events import OperatorEvent
from arborcast.dispatch.tables import TABLES
from arborcast.dispatch.tables.delta_table import DeltaTableWriter
from arborcast.topic_model.records import control as records
from arborcast.topic_model.records import fragments, operations
from arborcast.topic_model.records.control import (
    ControlRecord,
    SubscriptionEnded,
    SubscriptionRecord,
    SubscriptionSuspended,
    Tombstone,
    TopicRemoved,
)
from arborcast.topic_model.records.fragments import Assembled, GivenUp, StoredPart
from arborcast.topic_model.records.operations import OperationBegun
from arborcast.topic_model.topics import TopicPath
from tests.support import make
from tests.support.directory import topic
from tests.support.listed_logs import Listed, ListedLogs
from tests.support.table_rows import read


class Log(ListedLogs):
    """The log of the tables in this file."""

    def add(self, key: bytes, value: bytes | None) -> None:
        self.write("parked", key, value, 1_000)

    def control(self, *added: ControlRecord) -> None:
        for each in added:
            self.add(*records.encode(each))

    def waits(self, number: int, tries: Tries = Tries()) -> Delivery:  # noqa: B008  # a tuple
        delivery = Delivery("s", Place(4, 0, number))
        self.park(delivery, make.notification(f"n{number}", "a"), tries)
        return delivery


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(monkeypatch, follower)


def table_of(location: Path, fold: TableFold) -> FoldedTables:
    return FoldedTables(KafkaSettings(), "parked", [fold], lambda _: str(location))


def control_tables(folder: Path) -> FoldedTables:
    folds = TopicsFold(), SubscriptionsFold(), SuspensionsFold()
    return FoldedTables(KafkaSettings(), "parked", folds, lambda spec: str(folder / spec.name))


def read_all(tables: FoldedTables) -> None:
    while tables.step():
        pass


def subscription(name: str, **more: object) -> SubscriptionRecord:
    return SubscriptionRecord(make.subscription(name, "a//.", "http://e/", **more))


def fail(*_: object) -> None:
    raise OSError("no room")


def test_topics_and_subscriptions_of_the_log(tmp_path: Path, log: Log) -> None:
    a, b = TopicPath("{urn:t}a"), TopicPath("{urn:t}a/b")
    log.control(
        topic(a, code="7", retain=True, publishers=("x", "y")),
        topic(b),
        subscription("s1"),
        subscription("s2"),
        subscription("s3", terminates_ms=10**17),
        subscription("s2", paused=True),
        SubscriptionEnded("s1", "unsubscribed", 5_000),
        Tombstone.of("sub", "s1"),
        Tombstone.of("sub", "s3"),
    )
    tables = control_tables(tmp_path)
    assert not tables.step()
    assert read(tmp_path / "topics", "topic", "parent", "name", "depth", "code", "retain", "publishers") == [
        (a, "", "{urn:t}a", 1, "7", True, "x y"),
        (b, a, "b", 2, "", False, ""),
    ]
    ended = [("s1", "ended", "unsubscribed"), ("s2", "paused", ""), ("s3", "ended", "unknown")]
    expected = [(*each, "a//.", "http://e/") for each in ended]
    assert read(tmp_path / "subscriptions", "subscription", "state", "reason", "expression", "endpoint") == expected

    log.control(TopicRemoved(b), Tombstone.of("topic", b), Tombstone.of("sub", "s1"))
    tables.step()
    assert read(tmp_path / "topics", "topic") == [(a,)]
    assert read(tmp_path / "subscriptions", "subscription", "state", "reason") == ended

    # A recreated log replaces the tables, but not the history of subscriptions.
    log.records.clear()
    log.control(topic("c"))
    again = control_tables(tmp_path)
    assert again.step(), "more work"
    again.step()
    assert read(tmp_path / "topics", "topic") == [("c",)]
    assert read(tmp_path / "subscriptions", "subscription", "state") == [("s1", "ended"), ("s3", "ended")]


def test_the_column_of_suspensions(tmp_path: Path, log: Log) -> None:
    def states(folder: Path) -> list[tuple[Any, ...]]:
        return read(folder / "subscriptions", "subscription", "state", "suspended_at")

    at = datetime.fromtimestamp(7, UTC)
    log.control(*map(subscription, ("renewed", "resumed", "over", "never")))
    log.control(*(SubscriptionSuspended(name, "away", 4_000, 7_000) for name in ("renewed", "resumed", "over")))
    tables = control_tables(tmp_path)
    tables.step()
    suspended = [(name, "active", at) for name in ("over", "renewed", "resumed")]
    assert states(tmp_path) == [("never", "active", None), *suspended]

    # The record of a subscription does not contain its suspension, and does not end it.
    log.control(subscription("renewed", paused=True), Tombstone.of("susp", "resumed"))
    log.control(SubscriptionEnded("over", "expired", 8_000), Tombstone.of("sub", "over"))
    tables.step()
    expected = [("never", "active", None), ("over", "ended", None), ("renewed", "paused", at)]
    assert states(tmp_path) == [*expected, ("resumed", "active", None)]
    control_tables(tmp_path / "other").step()
    assert states(tmp_path / "other") == states(tmp_path), "read in one step"


def test_a_restart_continues_at_the_positions_of_the_tables(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def versions() -> list[int]:
        return [DeltaTable(str(tmp_path / name)).version() for name in ("topics", "subscriptions")]

    log.control(topic("a"), subscription("s"))
    tables = control_tables(tmp_path)
    with monkeypatch.context() as full_disk:
        full_disk.setattr(DeltaTableWriter, "change", fail)
        with pytest.raises(OSError, match="no room"):
            tables.step()
    tables.step()
    assert read(tmp_path / "topics", "topic") == [("a",)], "continues at the position of the table"
    before = versions()
    tables.step()
    control_tables(tmp_path).step()
    assert versions() == before, "no commit without changes"
    assert log.began_at[-1] == {0: 2}

    # Only one table changes: from the other one's position the record is read again, without an effect.
    log.control(topic("b"))
    tables.step()
    control_tables(tmp_path).step()
    assert log.began_at[-1] == {0: 2}
    assert read(tmp_path / "topics", "topic") == [("a",), ("b",)]


def test_retries_are_the_waiting_deliveries(tmp_path: Path, log: Log) -> None:
    first, second, third = (log.waits(number) for number in range(3))
    log.tried(second, Tries(2, 1, 9_000))
    log.finished(third)
    tables = table_of(tmp_path, RetriesFold())
    tables.step()
    columns = "notification", "subscription", "topic", "tries", "counted", "offset"
    assert read(tmp_path, *columns) == [("n0", "s", "a", 0, 0, 0), ("n1", "s", "a", 2, 1, 1)]

    log.tried(first, Tries(1, 1, 8_000))
    log.finished(second)
    # A repeated batch parks a delivery again that was tried since.
    log.waits(0)
    tables.step()
    assert read(tmp_path, "notification", "tries") == [("n0", 1)]

    # Records that are read again change nothing.
    fold = RetriesFold()
    changes = RowChanges(fold)
    once = read(tmp_path, "delivery", "tries", "due_at")
    fold.apply(log.records["parked"][0], changes)
    changes.write(DeltaTableWriter(fold.spec, str(tmp_path)), {})
    assert read(tmp_path, "delivery", "tries", "due_at") == once


@pytest.mark.parametrize(
    ("tries", "after", "due_s"),
    [
        # A push with a later result ends; an attempt is requested.
        (Tries(1, 0, 600_000, 1, "p-1"), Tries(1, 1, 9_000, 7_000), 9),
        (Tries(1, 1, 9_000, 1_000), Tries(1, 1, 9_000, 1_000).requested(3_000), 3),
    ],
)
def test_a_retry_may_become_due_earlier(tmp_path: Path, log: Log, tries: Tries, after: Tries, due_s: int) -> None:
    first = log.waits(0, tries)
    tables = table_of(tmp_path, RetriesFold())
    tables.step()
    log.tried(first, after)
    tables.step()
    assert read(tmp_path, "tries", "counted", "due_at") == [(1, 1, datetime.fromtimestamp(due_s, UTC))]


def letter(payload: bytes = b"<x/>") -> bytes:
    message = make.notification("n", "a", payload)
    return dead_letters.encode(DeadLetter("s", "http://e/", message, "dead", 3_000, 5, "server-error", "HTTP 500", 500))


def test_tables_with_changing_rows_have_no_messages() -> None:
    """A change rewrites files: gigabytes of waiting messages, for each attempt."""
    assert not [(spec.name, each.name) for spec in TABLES if spec.key for each in spec.columns if each.type == "binary"]


def test_dead_letters_are_rows_until_removed(tmp_path: Path, log: Log) -> None:
    for number, value in ((1, letter()), (2, letter()), (3, b"junk")):
        log.add(b"s\t4.0.%d" % number, value)
    tables = table_of(tmp_path, DeadLettersFold())
    tables.step()
    log.add(b"s\t4.0.2", None)
    tables.step()
    expected = ("s\t4.0.1", "n", "dead", "server-error", 500, 5)
    assert read(tmp_path, "delivery", "notification", "state", "error", "status", "attempts") == [expected]

    # A step reads a bounded number of bytes.
    large = letter(bytes(4 * 1024 * 1024))
    for number in range(4, 10):
        log.add(b"s\t4.0.%d" % number, large)
    assert tables.step(), "more work"
    assert len(read(tmp_path, "delivery")) == 1 + 4
    assert not tables.step()
    assert len(read(tmp_path, "delivery")) == 1 + 6


@pytest.mark.parametrize(("hours", "kept"), [(11, [0, 2]), (13, [2]), (-1, [2])], ids=["used", "old", "clock put back"])
def test_a_table_behind_compacted_nulls_is_built_again(
    hours: int, kept: list[int], tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_ms, hour_ms = 1_700_000_000_000, 3_600_000
    monkeypatch.setattr(state_tables, "time_ms", lambda: at_ms)
    log.waits(0)
    table_of(tmp_path, RetriesFold()).step()

    # The delivery and its null are compacted away.
    monkeypatch.setattr(state_tables, "time_ms", lambda: at_ms + hours * hour_ms)
    log.records["parked"][0] = Listed(b"junk", b"junk", 0, 1_000)
    log.waits(2)
    read_all(table_of(tmp_path, RetriesFold()))
    read_all(table_of(tmp_path, RetriesFold()))
    assert sorted(offset for (offset,) in read(tmp_path, "offset")) == kept


def test_the_tables_of_a_log_without_records_prove_that_it_was_read(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_ms, hour_ms = 1_700_000_000_000, 3_600_000
    log.control(topic("a"), subscription("s1"))
    tables = control_tables(tmp_path)
    for hours in range(13):
        monkeypatch.setattr(state_tables, "time_ms", lambda at_ms=at_ms + hours * hour_ms: at_ms)
        tables.step()
    versions = [DeltaTable(str(tmp_path / name)).version() for name in ("topics", "subscriptions")]
    assert versions == [1 + 4, 2], "one of each fold; the first table has one every three hours"

    log.control(subscription("s2"))
    read_all(control_tables(tmp_path))
    assert DeltaTable(str(tmp_path / "topics")).version() == 1 + 4
    assert read(tmp_path / "subscriptions", "subscription") == [("s1",), ("s2",)]


def test_topics_and_subscriptions_behind_compacted_nulls_are_built_again(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_ms = 1_700_000_000_000
    monkeypatch.setattr(state_tables, "time_ms", lambda: at_ms)
    log.control(topic("a"), topic("b"), subscription("s1"), subscription("s2"), subscription("s3"))
    log.control(SubscriptionSuspended("s2", "away", 4_000, 7_000), SubscriptionEnded("s3", "expired", 8_000))
    control_tables(tmp_path).step()

    # Topic a and subscription s1 were removed during an outage of the job, and their nulls are compacted away.
    for removed in (0, 2):
        log.records["parked"][removed] = Listed(b"junk", b"junk", 0, 1_000)
    log.control(topic("c"))
    monkeypatch.setattr(state_tables, "time_ms", lambda: at_ms + 13 * 3_600_000)
    read_all(control_tables(tmp_path))
    assert read(tmp_path / "topics", "topic") == [("b",), ("c",)]
    assert read(tmp_path / "subscriptions", "subscription", "state", "suspended_at") == [
        ("s2", "active", datetime.fromtimestamp(7, UTC)),
        ("s3", "ended", None),
    ]


def test_the_tables_of_another_log_of_the_same_name_are_built_again(tmp_path: Path, log: Log) -> None:
    """That of another cluster; it is longer."""
    log.control(topic("a"), topic("b"))
    control_tables(tmp_path).step()
    log.records.clear()
    log.topic_id = "second"
    log.control(topic("c"), topic("d"), topic("e"))
    read_all(control_tables(tmp_path))
    assert read(tmp_path / "topics", "topic") == [("c",), ("d",), ("e",)]


def test_a_table_that_did_not_change_is_not_built_again_after_a_restart(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_ms = 1_700_000_000_000
    monkeypatch.setattr(state_tables, "time_ms", lambda: at_ms)
    log.control(topic("a"), subscription("s1"))
    tables = control_tables(tmp_path)
    tables.step()
    monkeypatch.setattr(state_tables, "time_ms", lambda: at_ms + 13 * 3_600_000)
    log.control(subscription("s2"))
    tables.step()

    log.control(subscription("s3"))
    read_all(control_tables(tmp_path))
    assert DeltaTable(str(tmp_path / "topics")).version() == 1, "created, and one commit"
    assert read(tmp_path / "subscriptions", "subscription") == [("s1",), ("s2",), ("s3",)]


def test_incomplete_messages_are_rows_and_events_once(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[OperatorEvent] = []
    tables = table_of(tmp_path, IncompleteFold(events.append))
    path = TopicPath("all/alarm")
    for record in (
        StoredPart("anna", path, "me:1", 0, False, b"<half", 1_000),
        GivenUp("anna", path, "me:1", 0, 0, "time", 1_000, 31_000, "0", "1-", 5),
        GivenUp("", path, "me:2", 7, 9, "content", 1_000, 2_000, "0-4", "", 500, "too many elements"),
        # Assembled by one gateway while another gave it up.
        GivenUp("", path, "me:3", 10, 10, "time", 1_000, 2_000, "0", "1-", 5),
        Assembled("", path, "me:3", 10, 11),
    ):
        log.add(*fragments.encode(record))
    log.add(b"damaged", b"\xff")
    with monkeypatch.context() as full_disk:
        full_disk.setattr(DeltaTableWriter, "change", fail)
        with pytest.raises(OSError, match="no room"):
            tables.step()
    read_all(tables)

    assert read(tmp_path, "identification", "owner", "topic", "reason", "received", "missing", "bytes") == [
        ("me:1", "anna", "all/alarm", "time", "0", "1-", 5),
        ("me:2", "", "all/alarm", "content", "0-4", "", 500),
    ]
    assert [(each.kind, dict(each.facts)["Identification"], each.topic) for each in events] == [
        ("fragments-incomplete", name, "all/alarm") for name in ("me:1", "me:2", "me:3")
    ]
    assert events[0].detail.endswith("no further part arrived; it has the parts 0 and lacks 1-")
    assert (events[1].detail.endswith("(too many elements)"), "lacks" in events[1].detail) == (True, False)


def test_changes_by_operators_are_rows_and_outlive_their_log(tmp_path: Path, log: Log) -> None:
    interfaces: list[str] = []

    def add(operation: OperationBegun, *results: str) -> None:
        for each in operations.pieces_of(operation):
            log.add(*operations.encode(each))
        for result in results:
            log.add(*operations.encode(operations.ended(operation, result)))

    def restart() -> FoldedTables:
        tables = table_of(tmp_path, OperationsFold(interfaces.append))
        read_all(tables)
        return tables

    by = operations.Operator("console", "anna")
    changes = [operations.change(f"t{number}", number, number + 1) for number in range(40)]
    add(operations.begun(by, "topics save", changes, 7), "done")
    add(operations.begun(by, "restore", ()), "9 records")
    restart()
    add(operations.begun(by, "topics add", changes[:1]))  # no result: its process ended
    running = restart()
    expected = [
        ("topics save", f"t{number}", str(number), str(number + 1), 0 if number else 7, "done") for number in range(40)
    ]
    others = [("restore", "", "", "", 0, "9 records"), ("topics add", "t0", "0", "1", 0, "")]
    assert read(tmp_path, "action", "subject", "before", "after", "more", "result") == sorted([*expected, *others])
    log.records.clear()
    add(operations.begun(by, "topics remove", changes[:1]), "done")
    read_all(running)
    assert len(read(tmp_path, "action")) == 43
    assert interfaces == ["console"] * 4
