"""Appends that Kafka refuses; the cursor of a log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog import follower, writers
from arborcast.core.eventlog.consumer import Discontinued, Replaced
from arborcast.core.eventlog.follower import LogCursor
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


def test_a_failure_of_the_broker_and_no_other_has_the_producer_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    strict, sick = PlayedProducer(MessageSizeTooLargeError("too large")), PlayedProducer(KafkaTimeoutError("gone"))
    producers = [strict, sick, PlayedProducer()]
    monkeypatch.setattr(writers, "make_producer", lambda _: producers.pop(0))

    log = LogWriter(KafkaSettings(), "control")
    for _ in range(2):
        with pytest.raises(InfrastructureError, match="too large"):
            log.append_encoded([(b"k", b"v")])
    assert (strict.aborted, len(producers)) == (False, 2)

    log = LogWriter(KafkaSettings(), "control")
    with pytest.raises(InfrastructureError, match="the control log cannot be written"):
        log.append_encoded([(b"k", b"v")])
    assert sick.aborted
    assert log.append_encoded([(b"k", b"v")]) == 7


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


@pytest.fixture
def cursor_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(log: PlayedLog, positions: Mapping[int, int], seen: Mapping[int, int] | None = None) -> LogCursor:
        monkeypatch.setattr(follower, "LogConsumer", lambda *_, **__: log)
        return LogCursor(log.kafka, "parked", positions, seen)

    return make


def test_a_cursor_gives_the_records_after_its_positions(cursor_of: Any) -> None:
    cursor = cursor_of(PlayedLog({0: 5, 1: 3}, beginning=2), {0: 3})
    ends = cursor.ends()
    assert not cursor.has_reached(ends)
    found = {number: [each.offset for each in records] for number, records in cursor.poll(0.0).items()}
    assert found == {0: [3, 4], 1: [2]}
    assert cursor.has_reached(ends)
    assert cursor.poll(0.0) == {}


@pytest.mark.parametrize("reads", [LogCursor.poll, LogCursor.read])
def test_added_partitions_are_read_from_their_beginning(
    reads: Callable[[LogCursor, int], object], cursor_of: Any
) -> None:
    log = PlayedLog({0: 1})
    cursor = cursor_of(log, {})
    reads(cursor, 10)
    log.records[1] = 2
    reads(cursor, 10)
    assert cursor.positions == {0: 1, 1: 2}


@pytest.mark.parametrize(("positions", "seen"), [({0: 8}, None), ({0: 2}, {0: 8})])
def test_a_log_that_ends_before_what_was_read_was_created_again(
    positions: dict[int, int], seen: dict[int, int] | None, cursor_of: Any
) -> None:
    for reads in (LogCursor.ends, lambda cursor: cursor.poll(0.0), lambda cursor: cursor.read(10)):
        with pytest.raises(Replaced, match="it ends at 5, it was read to 8"):
            reads(cursor_of(PlayedLog({0: 5}), positions, seen))
    assert issubclass(Replaced, Discontinued)


def test_records_of_a_read_that_failed_are_read_again(cursor_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log = PlayedLog({0: 9})
    cursor = cursor_of(log, {0: 1})
    polls = iter([log.poll, log.poll])
    monkeypatch.setattr(log, "poll", lambda *asked: next(polls)(*asked))
    with pytest.raises(StopIteration):
        cursor.read(10)
    monkeypatch.undo()
    assert cursor.positions == {0: 1}
    assert [each.offset for each in cursor.read(2)] == [1, 2]


@pytest.mark.parametrize(("limit", "limit_bytes", "found"), [(100, None, 9), (4, None, 4), (100, 35, 4)])
def test_a_cursor_reads_to_the_end_or_to_its_limit(
    limit: int, limit_bytes: int | None, found: int, cursor_of: Any
) -> None:
    cursor = cursor_of(PlayedLog({0: 9}), {})
    assert len(cursor.read(limit, limit_bytes)) == found
    assert cursor.positions == {0: found}
