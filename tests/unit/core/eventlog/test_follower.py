"""Appends that Kafka refuses; single records; the cursor of a log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError, OffsetOutOfRangeError

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog import consumer as consumer_module
from arborcast.core.eventlog import follower, writers
from arborcast.core.eventlog.consumer import Discontinued, Replaced
from arborcast.core.eventlog.follower import LogCursor
from arborcast.core.eventlog.scan import LogReader
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.settings import KafkaSettings


class PlayedProducer:
    """Settles each record at once: with this failure, or at offset 7."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.aborted = False

    def send(self, *_: object, **__: object) -> PlayedProducer:
        return self

    def add_callback(self, call: Callable[[object], object]) -> None:
        if self.failure is None:
            call(SimpleNamespace(offset=7))

    def add_errback(self, call: Callable[[BaseException], object]) -> None:
        if self.failure is not None:
            call(self.failure)

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def producers(monkeypatch: pytest.MonkeyPatch) -> list[PlayedProducer]:
    """Those that a writer is given, one after the other."""
    found: list[PlayedProducer] = []
    monkeypatch.setattr(writers, "make_producer", lambda _: found.pop(0))
    return found


def test_after_a_failure_of_the_broker_another_producer_is_used(producers: list[PlayedProducer]) -> None:
    sick = PlayedProducer(KafkaTimeoutError("gone"))
    producers += [sick, PlayedProducer()]
    log = LogWriter(KafkaSettings(), "control")

    with pytest.raises(InfrastructureError, match="the control log cannot be written"):
        log.append_encoded([(b"k", b"v")])

    assert sick.aborted
    assert log.append_encoded([(b"k", b"v")]) == 7


def test_a_record_that_nobody_would_take_is_not_the_producers_fault(producers: list[PlayedProducer]) -> None:
    producers.append(PlayedProducer(MessageSizeTooLargeError("too large")))
    log = LogWriter(KafkaSettings(), "control")

    for _ in range(2):
        with pytest.raises(InfrastructureError, match="too large"):
            log.append_encoded([(b"k", b"v")])


class PlayedConsumer:
    """Has the records from `beginning` to `end`, a few of which come at a time, and counts what is asked."""

    def __init__(self, beginning: int, end: int) -> None:
        self.beginning = beginning
        self.end = end
        self.asked_beginnings = 0
        self.closed = False
        self._at = 0

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._partition = partitions[0]

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._at = offset

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {0}

    def poll(self, timeout_ms: int = 0, max_records: int | None = None) -> dict[TopicPartition, list[SimpleNamespace]]:
        if not self.beginning <= self._at <= self.end:
            raise OffsetOutOfRangeError({self._partition: self._at})
        offsets = range(self._at, min(self._at + 3, self.end))
        return {self._partition: [SimpleNamespace(offset=each, value=b"%d" % each) for each in offsets]}

    def beginning_offsets(self, partitions: Sequence[TopicPartition], timeout_ms: int = 0) -> dict[TopicPartition, int]:
        self.asked_beginnings += 1
        return {self._partition: self.beginning}

    def close(self, autocommit: bool = True, timeout_ms: int = 0) -> None:
        self.closed = True


def reader_of(consumer: PlayedConsumer, monkeypatch: pytest.MonkeyPatch) -> LogReader:
    monkeypatch.setattr(consumer_module, "make_consumer", lambda *_, **__: consumer)
    return LogReader(KafkaSettings(), "retained")


def test_what_the_log_no_longer_has_is_left_out_and_the_rest_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = PlayedConsumer(beginning=10, end=1_000)
    reader = reader_of(consumer, monkeypatch)

    assert reader.read([3, 9, 10, 500]) == {10: b"10", 500: b"500"}
    assert reader.read([3]) == {}
    assert consumer.asked_beginnings == 2


def test_an_offset_behind_the_end_is_of_another_log(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = PlayedConsumer(beginning=10, end=1_000)

    with pytest.raises(InfrastructureError, match="the retained log cannot be read"):
        reader_of(consumer, monkeypatch).read([2_000])

    assert consumer.closed


class PlayedLog:
    """Stands for the LogConsumer of a log with these records, by partition; two of a partition come at a time."""

    def __init__(self, records: dict[int, int], beginning: int = 0) -> None:
        self.records, self.beginning = records, beginning
        self.name, self.kafka = "parked", KafkaSettings()
        self._at: dict[int, int] = {}

    @property
    def placed(self) -> bool:
        return bool(self._at)

    def partitions(self) -> list[int]:
        return sorted(self.records)

    def beginnings(self) -> dict[int, int]:
        return dict.fromkeys(self.records, self.beginning)

    def ends(self) -> dict[int, int]:
        return dict(self.records)

    def seek(self, positions: Mapping[int, int]) -> None:
        self._at = dict(positions)

    def positions(self) -> dict[int, int]:
        return dict(self._at)

    def poll(self, timeout_s: float, max_records: int | None = None) -> dict[int, list[Any]]:
        found: dict[int, list[Any]] = {}
        for number, at in self._at.items():
            until = min(at + 2, self.records[number])
            found[number] = [SimpleNamespace(offset=each, value=b"x" * 10) for each in range(at, until)]
            self._at[number] = until
        return found

    def close(self) -> None:
        self._at = {}


def cursor_of(
    log: PlayedLog,
    positions: Mapping[int, int],
    monkeypatch: pytest.MonkeyPatch,
    seen: Mapping[int, int] | None = None,
) -> LogCursor:
    monkeypatch.setattr(follower, "LogConsumer", lambda *_, **__: log)
    return LogCursor(log.kafka, "parked", positions, seen)


def test_a_cursor_gives_the_records_after_its_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    cursor = cursor_of(PlayedLog({0: 5, 1: 3}, beginning=2), {0: 3}, monkeypatch)
    ends = cursor.ends()
    assert not cursor.has_reached(ends)
    assert {number: [each.offset for each in records] for number, records in cursor.poll(0.0).items()} == {
        0: [3, 4],
        1: [2],
    }
    assert cursor.has_reached(ends)
    assert cursor.poll(0.0) == {}


@pytest.mark.parametrize("reads", [LogCursor.poll, LogCursor.read])
def test_partitions_that_are_added_are_read_from_their_beginning(
    reads: Callable[[LogCursor, int], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = PlayedLog({0: 1})
    cursor = cursor_of(log, {}, monkeypatch)
    reads(cursor, 10)
    log.records[1] = 2
    reads(cursor, 10)
    assert cursor.positions == {0: 1, 1: 2}


@pytest.mark.parametrize(("positions", "seen"), [({0: 8}, None), ({0: 2}, {0: 8})])
def test_a_log_that_ends_before_what_was_read_of_it_was_created_again(
    positions: dict[int, int], seen: dict[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for reads in (LogCursor.ends, lambda cursor: cursor.poll(0.0), lambda cursor: cursor.read(10)):
        with pytest.raises(Replaced, match="it ends at 5, it was read to 8"):
            reads(cursor_of(PlayedLog({0: 5}), positions, monkeypatch, seen))
    assert issubclass(Replaced, Discontinued)


def test_records_of_a_read_that_failed_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    log = PlayedLog({0: 9})
    cursor = cursor_of(log, {0: 1}, monkeypatch)
    polls = iter([log.poll, log.poll])
    monkeypatch.setattr(log, "poll", lambda *asked: next(polls)(*asked))
    with pytest.raises(StopIteration):
        cursor.read(10)
    monkeypatch.undo()
    assert cursor.positions == {0: 1}
    assert [each.offset for each in cursor.read(2)] == [1, 2]


@pytest.mark.parametrize(("limit", "limit_bytes", "found"), [(100, None, 9), (4, None, 4), (100, 35, 4)])
def test_a_cursor_reads_to_the_end_of_the_log_or_to_its_limit(
    limit: int, limit_bytes: int | None, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursor = cursor_of(PlayedLog({0: 9}), {}, monkeypatch)
    assert len(cursor.read(limit, limit_bytes)) == found
    assert cursor.positions == {0: found}
