"""Logs of the unit kind: records in memory, real Delta tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.consumer import Replaced
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs import dead_letters, parked
from arborcast.dispatch.logs.dead_letters import DeadLetter
from arborcast.dispatch.logs.parked import Delivery, Parked, Place, Tried, Tries
from arborcast.dispatch.recording import follower
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
from arborcast.dispatch.tables.delta_table import DeltaTableWriter
from arborcast.topic_model.records import control as records
from arborcast.topic_model.records import fragments, operations
from arborcast.topic_model.records.control import (
    ControlRecord,
    SubscriptionEnded,
    SubscriptionRecord,
    SubscriptionSuspended,
    Tombstone,
    TopicPolicy,
    TopicRecord,
    TopicRemoved,
)
from arborcast.topic_model.records.fragments import Assembled, GivenUp, StoredPart
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.operations import OperationBegun
from arborcast.topic_model.subscriptions import EndpointReference, Subscription, TopicFilter
from arborcast.topic_model.topics import TopicPath


@dataclass
class Record:
    key: bytes
    value: bytes | None
    offset: int
    partition: int = 0
    timestamp: int = 1_000


class Log:
    """A log of one partition, read through what stands for `LogCursor`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records: list[Record] = []
        self.began_at: list[Mapping[int, int]] = []
        log = self

        class FakeTail:
            def __init__(
                self, kafka: KafkaSettings, name: str, positions: Mapping[int, int], seen: Mapping[int, int]
            ) -> None:
                log.began_at.append(dict(positions))
                self.positions = {0: positions.get(0, 0)}
                if seen.get(0, 0) > len(log.records):
                    raise Replaced("made anew")

            def read(self, limit: int, limit_bytes: int | None = None) -> Sequence[Record]:
                found: list[Record] = []
                for each in log.records[self.positions[0] :][:limit]:
                    if limit_bytes is not None and sum(len(one.value or b"") for one in found) >= limit_bytes:
                        break
                    found.append(each)
                self.positions = {0: self.positions[0] + len(found)}
                return found

            def close(self) -> None:
                pass

        monkeypatch.setattr(follower, "LogCursor", FakeTail)

    def add(self, key: bytes, value: bytes | None) -> None:
        self.records.append(Record(key, value, len(self.records)))

    def control(self, *added: ControlRecord) -> None:
        for each in added:
            self.add(*records.encode(each))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(monkeypatch)


def control_tables(folder: Path) -> FoldedTables:
    subscriptions = str(folder / "subscriptions")
    tables: list[tuple[str, TableFold]] = [
        (str(folder / "topics"), TopicsFold()),
        (subscriptions, SubscriptionsFold()),
        (subscriptions, SuspensionsFold()),
    ]
    return FoldedTables(KafkaSettings(), "control", tables)


def waiting_tables(folder: Path) -> FoldedTables:
    return FoldedTables(KafkaSettings(), "parked", [(str(folder / "retries"), RetriesFold())])


def rows(folder: Path, *columns: str) -> list[tuple[object, ...]]:
    found = DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
    return sorted(tuple(row[column] for column in columns) for row in found)


def subscription(name: str, **more: object) -> SubscriptionRecord:
    topics = (TopicFilter("", "a//.", "a//."),)
    return SubscriptionRecord(Subscription(name, EndpointReference("http://e/"), topics=topics, **more))  # type: ignore[arg-type]


def test_topics_and_subscriptions_are_what_the_log_says(tmp_path: Path, log: Log) -> None:
    a, b = TopicPath("{urn:t}a"), TopicPath("{urn:t}a/b")
    log.control(
        TopicRecord(a, code="7", policy=TopicPolicy(retain=True, publishers=("x", "y"))),
        TopicRecord(b),
        subscription("s1"),
        subscription("s2"),
        subscription("s3", terminates_ms=10**17),
        subscription("s2", paused=True),
        SubscriptionEnded("s1", "unsubscribed", 5_000),
        Tombstone(records.subscription_key("s1")),
        Tombstone(records.subscription_key("s3")),
    )
    tables = control_tables(tmp_path)

    assert not tables.step()

    assert rows(tmp_path / "topics", "topic", "parent", "name", "depth", "code", "retain", "publishers") == [
        (a, "", "{urn:t}a", 1, "7", True, "x y"),
        (b, a, "b", 2, "", False, ""),
    ]
    assert rows(tmp_path / "subscriptions", "subscription", "state", "reason", "expression", "endpoint") == [
        ("s1", "ended", "unsubscribed", "a//.", "http://e/"),
        ("s2", "paused", "", "a//.", "http://e/"),
        ("s3", "ended", "unknown", "a//.", "http://e/"),
    ]

    log.control(TopicRemoved(b), Tombstone(records.topic_key(b)), Tombstone(records.subscription_key("s1")))
    tables.step()

    assert rows(tmp_path / "topics", "topic") == [(a,)]
    assert rows(tmp_path / "subscriptions", "subscription", "reason") == [
        ("s1", "unsubscribed"),
        ("s2", ""),
        ("s3", "unknown"),
    ]


SUSPENDED_AT = datetime.fromtimestamp(7, UTC)


def suspended(log: Log, name: str) -> None:
    log.control(SubscriptionSuspended(name, "away", 4_000, 7_000))


def test_a_suspension_is_a_column_of_its_own(tmp_path: Path, log: Log) -> None:
    log.control(subscription("renewed"), subscription("resumed"), subscription("over"), subscription("never"))
    for name in ("renewed", "resumed", "over"):
        suspended(log, name)
    tables = control_tables(tmp_path)
    tables.step()
    table = tmp_path / "subscriptions"
    assert rows(table, "subscription", "state", "suspended_at") == [
        ("never", "active", None),
        ("over", "active", SUSPENDED_AT),
        ("renewed", "active", SUSPENDED_AT),
        ("resumed", "active", SUSPENDED_AT),
    ]

    # The whole state of a subscription says nothing of its suspension, and takes none back.
    log.control(subscription("renewed", paused=True), Tombstone(records.suspension_key("resumed")))
    log.control(SubscriptionEnded("over", "expired", 8_000), Tombstone(records.subscription_key("over")))
    tables.step()
    expected = [
        ("never", "active", None),
        ("over", "ended", None),
        ("renewed", "paused", SUSPENDED_AT),
        ("resumed", "active", None),
    ]
    assert rows(table, "subscription", "state", "suspended_at") == expected

    # In one stretch, too.
    anew = control_tables(tmp_path / "anew")
    anew.step()
    assert rows(tmp_path / "anew" / "subscriptions", "subscription", "state", "suspended_at") == expected


def test_nothing_new_is_no_commit_and_a_restart_goes_on_where_the_tables_are(tmp_path: Path, log: Log) -> None:
    log.control(TopicRecord(TopicPath("a")), subscription("s"))
    tables = control_tables(tmp_path)
    tables.step()
    versions = [DeltaTable(str(tmp_path / name)).version() for name in ("topics", "subscriptions")]
    tables.step()
    control_tables(tmp_path).step()

    assert [DeltaTable(str(tmp_path / name)).version() for name in ("topics", "subscriptions")] == versions
    assert log.began_at == [{}, {0: 2}]

    # Only one of the tables has a change: the other one's position says to read it again, which changes nothing.
    log.control(TopicRecord(TopicPath("b")))
    tables.step()
    again = control_tables(tmp_path)
    again.step()

    assert log.began_at[-1] == {0: 2}
    assert rows(tmp_path / "topics", "topic") == [("a",), ("b",)]


def test_log_that_was_made_anew_makes_the_tables_anew(tmp_path: Path, log: Log) -> None:
    log.control(TopicRecord(TopicPath("a")), TopicRecord(TopicPath("b")))
    control_tables(tmp_path).step()
    log.records.clear()
    log.control(TopicRecord(TopicPath("c")))

    tables = control_tables(tmp_path)
    assert tables.step(), "there is more to do at once"
    tables.step()

    assert rows(tmp_path / "topics", "topic") == [("c",)]


def place(number: int) -> Place:
    return Place(4, 0, number)


def waits(log: Log, number: int, tries: Tries = Tries()) -> Delivery:  # noqa: B008  # a tuple
    delivery = Delivery("s", place(number))
    notification = Notification(f"n{number}", TopicPath("a"), b"<x/>", 2_000)
    log.add(delivery.key(), parked.encode(Parked(notification, tries)))
    return delivery


def test_retries_are_what_waits(tmp_path: Path, log: Log) -> None:
    first, second, third = (waits(log, number) for number in range(3))
    log.add(second.tried_key(), parked.encode(Tried(Tries(2, 1, 9_000))))
    log.add(third.key(), None)
    log.add(third.tried_key(), None)
    tables = waiting_tables(tmp_path)
    tables.step()

    assert rows(tmp_path / "retries", "notification", "tries", "counted", "offset", "payload") == [
        ("n0", 0, 0, 0, b"<x/>"),
        ("n1", 2, 1, 1, b"<x/>"),
    ]

    log.add(first.tried_key(), parked.encode(Tried(Tries(1, 1, 8_000))))
    log.add(second.key(), None)
    log.add(second.tried_key(), None)
    # A batch that Spark repeats parks again what was tried since.
    waits(log, 0)
    tables.step()

    assert rows(tmp_path / "retries", "notification", "tries", "subscription", "topic") == [("n0", 1, "s", "a")]


def test_the_end_of_a_try_that_was_taken_for_later_says_when_it_is_due_again(tmp_path: Path, log: Log) -> None:
    first = waits(log, 0, Tries(1, 0, 600_000, 1, "p-1"))
    tables = waiting_tables(tmp_path)
    tables.step()
    log.add(first.tried_key(), parked.encode(Tried(Tries(1, 1, 9_000, 7_000))))
    tables.step()

    due = datetime(1970, 1, 1, 0, 0, 9, tzinfo=UTC)
    assert rows(tmp_path / "retries", "tries", "counted", "due_at") == [(1, 1, due)]


def test_a_requested_attempt_is_due_earlier(tmp_path: Path, log: Log) -> None:
    tries = Tries(1, 1, 9_000, 1_000)
    first = waits(log, 0, tries)
    tables = waiting_tables(tmp_path)
    tables.step()
    log.add(first.tried_key(), parked.encode(Tried(tries.requested(3_000))))
    tables.step()

    due = datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC)
    assert rows(tmp_path / "retries", "tries", "counted", "due_at") == [(1, 1, due)]


def test_stretch_of_the_log_that_is_read_again_changes_nothing(tmp_path: Path, log: Log) -> None:
    first = waits(log, 0)
    log.add(first.tried_key(), parked.encode(Tried(Tries(1, 1, 8_000))))
    waiting_tables(tmp_path).step()
    once = rows(tmp_path / "retries", "delivery", "tries", "due_at")
    fold = RetriesFold()
    changes = RowChanges(fold.spec)
    for record in log.records[:1]:
        fold.apply(record, changes)

    DeltaTableWriter(fold.spec, str(tmp_path / "retries")).merge(changes.arrow(), {}, fold.patched, fold.guard)

    assert rows(tmp_path / "retries", "delivery", "tries", "due_at") == once


def test_dead_letters_hold_the_whole_message_until_they_are_forgotten(tmp_path: Path, log: Log) -> None:
    notification = Notification("n", TopicPath("a"), b"<x/>", 2_000, producer=b"<p/>")
    letter = DeadLetter("s", "http://e/", notification, "dead", 3_000, 5, "server-error", "HTTP 500", 500)
    log.add(b"s\t4.0.1", dead_letters.encode(letter))
    log.add(b"s\t4.0.2", dead_letters.encode(letter))
    log.add(b"s\t4.0.3", b"junk")
    tables = FoldedTables(KafkaSettings(), "dead", [(str(tmp_path / "dead_letters"), DeadLettersFold())])
    tables.step()
    log.add(b"s\t4.0.2", None)
    tables.step()

    assert rows(tmp_path / "dead_letters", "delivery", "state", "error", "status", "attempts", "payload") == [
        ("s\t4.0.1", "dead", "server-error", 500, 5, b"<x/>")
    ]


def test_a_step_reads_some_megabytes_however_many_large_messages_wait(tmp_path: Path, log: Log) -> None:
    notification = Notification("n", TopicPath("a"), bytes(4 * 1024 * 1024), 2_000)
    letter = dead_letters.encode(DeadLetter("s", "http://e/", notification, "dead", 3_000, 5))
    for number in range(6):
        log.add(b"s\t4.0.%d" % number, letter)
    tables = FoldedTables(KafkaSettings(), "dead", [(str(tmp_path / "dead_letters"), DeadLettersFold())])

    assert tables.step(), "more can be read at once"
    assert len(rows(tmp_path / "dead_letters", "delivery")) == 4
    assert not tables.step()
    assert len(rows(tmp_path / "dead_letters", "delivery")) == 6


def test_step_that_failed_begins_again_at_what_the_table_has(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.control(TopicRecord(TopicPath("a")))
    tables = control_tables(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(DeltaTableWriter, "merge", _refuse)
        with pytest.raises(InfrastructureError):
            tables.step()

    tables.step()

    assert rows(tmp_path / "topics", "topic") == [("a",)]


def _refuse(*arguments: object) -> None:
    raise InfrastructureError("the disk is full")


def test_messages_that_were_given_up_are_rows_and_are_told_once(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[OperatorEvent] = []
    folds: list[tuple[str, TableFold]] = [(str(tmp_path / "incomplete"), IncompleteFold(told.append))]
    tables = FoldedTables(KafkaSettings(), "fragments", folds)
    path = TopicPath("all/alarm")
    for record in (
        StoredPart("anna", path, "me:1", 0, False, b"<half", 1_000),
        GivenUp("anna", path, "me:1", 0, 0, "time", 1_000, 31_000, "0", "1-", 5),
        GivenUp("", path, "me:2", 7, 9, "content", 1_000, 2_000, "0-4", "", 500, "too many elements"),
        # Put together at the moment in which another gave it up.
        GivenUp("", path, "me:3", 10, 10, "time", 1_000, 2_000, "0", "1-", 5),
        Assembled("", path, "me:3", 10, 11),
    ):
        log.add(*fragments.encode(record))
    log.add(b"damaged", b"\xff")
    with monkeypatch.context() as full_disk:
        full_disk.setattr(DeltaTableWriter, "merge", _no_room)
        with pytest.raises(OSError, match="no room"):
            tables.step()
    while tables.step():
        pass

    assert rows(tmp_path / "incomplete", "identification", "owner", "topic", "reason", "had", "missing", "bytes") == [
        ("me:1", "anna", "all/alarm", "time", "0", "1-", 5),
        ("me:2", "", "all/alarm", "content", "0-4", "", 500),
    ]
    assert [(each.kind, dict(each.facts)["Identification"], each.topic) for each in told] == [
        ("fragments-incomplete", name, "all/alarm") for name in ("me:1", "me:2", "me:3")
    ]
    assert told[0].detail == "the message 'me:1' was given up: no further part arrived; it has the parts 0 and lacks 1-"
    assert (told[1].detail.endswith("(too many elements)"), "lacks" in told[1].detail) == (True, False)


def _no_room(*_: object) -> None:
    raise OSError("no room")


def test_changes_by_operators_are_rows_with_their_results_and_outlive_their_log(tmp_path: Path, log: Log) -> None:
    doors: list[str] = []

    def tables() -> FoldedTables:
        folds: list[tuple[str, TableFold]] = [(str(tmp_path / "operations"), OperationsFold(doors.append))]
        return FoldedTables(KafkaSettings(), "operations", folds)

    def add(operation: OperationBegun, *results: str) -> None:
        for each in operations.pieces_of(operation):
            log.add(*operations.encode(each))
        for result in results:
            log.add(*operations.encode(operations.ended(operation, result)))

    by = operations.Operator("console", "anna")
    changes = [operations.change(f"t{number}", number, number + 1) for number in range(40)]
    add(operations.begun(by, "topics save", changes, 7), "done")
    add(operations.begun(by, "restore", ()), "9 records")
    while tables().step():
        pass
    add(operations.begun(by, "topics add", changes[:1]))  # its process ended
    while tables().step():
        pass
    found = rows(tmp_path / "operations", "what", "subject", "before", "after", "more", "result")
    saved = [each for each in found if each[0] == "topics save"]
    assert sorted(saved) == sorted(
        ("topics save", f"t{number}", str(number), str(number + 1), 7 if number == 0 else 0, "done")
        for number in range(40)
    )
    assert [each for each in found if each not in saved] == [
        ("restore", "", "", "", 0, "9 records"),
        ("topics add", "t0", "0", "1", 0, ""),
    ]
    log.records.clear()
    add(operations.begun(by, "topics remove", changes[:1]), "done")
    while tables().step():
        pass
    assert len(rows(tmp_path / "operations", "what")) == 43
    assert doors == ["console"] * 4
