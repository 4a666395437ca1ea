"""What becomes of the producer behind a log when Kafka refuses a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError, OffsetOutOfRangeError

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog import consumer as consumer_module
from arborcast.core.eventlog import writers
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


def test_single_records_are_read_without_asking_each_time_where_the_log_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = PlayedConsumer(beginning=10, end=1_000)
    reader = reader_of(consumer, monkeypatch)

    for offset in range(10, 900, 7):
        assert reader.read([offset, offset + 50]) == {offset: b"%d" % offset, offset + 50: b"%d" % (offset + 50)}

    assert consumer.asked_beginnings == 0


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
