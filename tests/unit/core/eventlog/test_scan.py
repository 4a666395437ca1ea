"""Scans end at the end of the log, also with gaps in the offsets by compaction and transactions; records by offset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError, OffsetOutOfRangeError

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog import consumer as consumer_module
from arborcast.core.eventlog import scan as scan_module
from arborcast.core.eventlog.consumer import Discontinued, Replaced
from arborcast.core.eventlog.follower import LogCursor
from arborcast.core.eventlog.scan import LogReader, LogScan, OffsetRange
from arborcast.core.settings import KafkaSettings

SETTINGS = KafkaSettings(request_timeout_s=2)


class PlayedLog:
    """Offsets of records by partition, and the end. A few at a time; the clock advances by a second."""

    def __init__(self, *partitions: tuple[Sequence[int], int], silent: bool = False, beginning: int = 0) -> None:
        self.partitions = partitions
        self.silent = silent
        self.beginning, self.asked_beginnings = beginning, 0
        self.now = 0.0
        self.at: dict[TopicPartition, int] = {}
        self.polled: list[int] = []
        self.closed = False
        self.fails_at = -1

    def partitions_for_topic(self, topic: str) -> set[int]:
        return set(range(len(self.partitions)))

    def beginning_offsets(self, partitions: Sequence[TopicPartition], timeout_ms: int) -> dict[TopicPartition, int]:
        self.asked_beginnings += 1
        return dict.fromkeys(partitions, self.beginning)

    def end_offsets(self, partitions: Sequence[TopicPartition], timeout_ms: int) -> dict[TopicPartition, int]:
        return {each: self.partitions[each.partition][1] for each in partitions}

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, Any]:
        offsets = {each: [one for one in self.partitions[each.partition][0] if one >= ms] for each, ms in times.items()}
        return {each: SimpleNamespace(offset=found[0]) if found else None for each, found in offsets.items()}

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self.at = {each: self.at.get(each, 0) for each in partitions}

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.at[partition] = offset

    def position(self, partition: TopicPartition) -> int:
        return self.at[partition]

    def highwater(self, partition: TopicPartition) -> int | None:
        return self.partitions[partition.partition][1] if partition.partition in self.polled else None

    def poll(self, timeout_ms: int, max_records: int | None = None) -> dict[TopicPartition, list[Any]]:
        self.now += 1.0
        if self.fails_at in self.at.values():
            raise KafkaTimeoutError("slow")
        if self.silent:
            return {}
        polled = {}
        for each, at in self.at.items():
            self.polled.append(each.partition)
            offsets, end = self.partitions[each.partition]
            if not self.beginning <= at <= end:
                raise OffsetOutOfRangeError({each: at})
            coming = [offset for offset in offsets if offset >= at][:2]
            # Behind the last record there may be transaction markers, which are no records.
            self.at[each] = coming[-1] + 1 if coming else end
            if coming:
                polled[each] = [
                    SimpleNamespace(partition=each.partition, offset=one, value=b"%10d" % one) for one in coming
                ]
        return polled

    def close(self, autocommit: bool, timeout_ms: int) -> None:
        self.closed = True


@pytest.fixture
def scan_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(log: PlayedLog, within_s: float | None = None) -> LogScan:
        monkeypatch.setattr(consumer_module, "make_consumer", lambda *_, **__: log)
        monkeypatch.setattr(scan_module, "time", SimpleNamespace(monotonic=lambda: log.now))
        return LogScan(SETTINGS, "attempts", within_s)

    return make


def read(records: Any) -> list[tuple[int, int]]:
    return sorted((each.partition, each.offset) for each in records)


def test_all_records_are_read_over_gaps_and_up_to_the_end(scan_of: Any) -> None:
    log = PlayedLog(([0, 1, 5, 6, 9], 12), ([], 3), ([2], 3), ([], 0))
    with scan_of(log) as scan:
        assert read(scan.read_all()) == [(0, 0), (0, 1), (0, 5), (0, 6), (0, 9), (2, 2)]


def test_nothing_is_fetched_behind_the_range_of_a_partition(scan_of: Any) -> None:
    log = PlayedLog((range(100), 100), (range(100), 100))
    with scan_of(log) as scan:
        assert read(scan.read({0: OffsetRange(10, 13), 1: OffsetRange(0, 8), 2: OffsetRange(5, 5)})) == [
            *((0, offset) for offset in range(10, 13)),
            *((1, offset) for offset in range(8)),
        ]
    assert log.polled.count(0) == 2


def test_the_first_record_behind_each_position(scan_of: Any) -> None:
    log = PlayedLog((range(2, 5), 5), (range(2, 4), 4), (range(2, 3), 3), beginning=2)
    with scan_of(log) as scan:
        assert read(scan.first_behind({0: 3, 1: 0, 2: 3, 9: 1})) == [(0, 3), (1, 2)]


def test_a_time_is_an_offset_in_each_partition_or_its_end(scan_of: Any) -> None:
    log = PlayedLog(([1, 7], 8), ([2], 5))
    with scan_of(log) as scan:
        assert scan.at(4) == {0: 7, 1: 5}
        assert read(scan.read_from(scan.at(4))) == [(0, 7)]


def test_a_silent_broker_is_an_error_after_the_request_timeout(scan_of: Any) -> None:
    with scan_of(PlayedLog(([1], 2), silent=True)) as scan, pytest.raises(InfrastructureError, match="for 2 s"):
        list(scan.read_all())


@pytest.mark.parametrize("silent", [False, True])
def test_a_scan_ends_at_its_time_limit(scan_of: Any, silent: bool) -> None:
    log = PlayedLog((range(1_000), 1_000), silent=silent)
    with scan_of(log, within_s=10) as scan, pytest.raises(InfrastructureError, match="longer than 10 s"):
        list(scan.read_all())
    assert log.now == 11


def test_single_records_except_those_deleted_from_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    log = PlayedLog((range(10, 1_000), 1_000), beginning=10)
    monkeypatch.setattr(consumer_module, "make_consumer", lambda *_, **__: log)
    reader = LogReader(KafkaSettings(), "retained")

    assert reader.read([3, 9, 10, 500]) == {10: b"%10d" % 10, 500: b"%10d" % 500}
    assert reader.read([3]) == {}
    assert log.asked_beginnings == 2

    # An offset behind the end belongs to another log.
    with pytest.raises(InfrastructureError, match="the retained log cannot be read"):
        reader.read([2_000])
    assert log.closed


@pytest.fixture
def cursor_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(log: PlayedLog, positions: Mapping[int, int], seen: Mapping[int, int] | None = None) -> LogCursor:
        monkeypatch.setattr(consumer_module, "make_consumer", lambda *_, **__: log)
        return LogCursor(SETTINGS, "parked", positions, seen)

    return make


def test_a_cursor_gives_the_records_after_its_positions(cursor_of: Any) -> None:
    log = PlayedLog((range(5), 5), (range(3), 3), beginning=2)
    cursor = cursor_of(log, {0: 3})
    ends = cursor.ends()
    assert not cursor.has_reached(ends)
    assert cursor.unread() == 0, "not known before the first poll"
    found = {number: [each.offset for each in records] for number, records in cursor.poll(0.0).items()}
    assert found == {0: [3, 4], 1: [2]}
    assert cursor.has_reached(ends)
    log.partitions = ((range(9), 9), *log.partitions[1:])
    assert cursor.unread() == 4
    log.partitions = ((range(5), 5), *log.partitions[1:])
    assert cursor.poll(0.0) == {}


@pytest.mark.parametrize("reads", [LogCursor.poll, LogCursor.read])
def test_added_partitions_are_read_from_their_beginning(
    reads: Callable[[LogCursor, int], object], cursor_of: Any
) -> None:
    log = PlayedLog((range(1), 1))
    cursor = cursor_of(log, {})
    reads(cursor, 10)
    log.partitions = (*log.partitions, (range(2), 2))
    reads(cursor, 10)
    assert cursor.positions == {0: 1, 1: 2}


@pytest.mark.parametrize(("positions", "seen"), [({0: 8}, None), ({0: 2}, {0: 8})])
def test_a_log_that_ends_before_the_position_was_recreated(
    positions: dict[int, int], seen: dict[int, int] | None, cursor_of: Any
) -> None:
    for reads in (LogCursor.ends, lambda cursor: cursor.poll(0.0), lambda cursor: cursor.read(10)):
        with pytest.raises(Replaced, match="it ends at 5, it was read to 8"):
            reads(cursor_of(PlayedLog((range(5), 5)), positions, seen))
    assert issubclass(Replaced, Discontinued)


def test_records_of_a_read_that_failed_are_read_again(cursor_of: Any) -> None:
    log = PlayedLog((range(9), 9))
    cursor = cursor_of(log, {0: 1})
    log.fails_at = 5
    with pytest.raises(InfrastructureError, match="no answer in time"):
        cursor.read(10)
    log.fails_at = -1
    assert cursor.positions == {0: 1}
    assert [each.offset for each in cursor.read(2)] == [1, 2]


@pytest.mark.parametrize(("limit", "limit_bytes", "found"), [(100, None, 9), (4, None, 4), (100, 35, 4)])
def test_a_cursor_reads_to_the_end_or_to_its_limit(
    limit: int, limit_bytes: int | None, found: int, cursor_of: Any
) -> None:
    cursor = cursor_of(PlayedLog((range(9), 9)), {})
    assert len(cursor.read(limit, limit_bytes)) == found
    assert cursor.positions == {0: found}
