"""Kafka in memory: partitioned logs with offsets, retention and compaction; partitions without a leader; appends that
time out although they are in the log."""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kafka import errors
from kafka.structs import TopicPartition

from arborcast.core.eventlog.topics import specifications
from arborcast.core.settings import KafkaSettings
from tests.world.kernel import EPOCH_S, Fiber, Host, Kernel, Process, Waiters

# The least delay of the network in seconds; the longest is twice this.
_NETWORK_S = 0.000_5

_HOUR_S = 3_600.0


class Record(NamedTuple):
    offset: int
    partition: int
    key: bytes
    value: bytes | None
    timestamp: int


class Acknowledged(NamedTuple):
    partition: int
    offset: int


class OffsetAtTime(NamedTuple):
    offset: int


@dataclass
class Partition:
    """One partition of a log."""

    topic: str
    number: int
    compacted: bool
    retention_s: float
    waiters: Waiters
    records: list[Record] = field(default_factory=list)
    first: int = 0
    end: int = 0
    leader_at: float = 0.0  # it has no leader before this time
    compacted_at: float = 0.0

    def index(self, offset: int) -> int:
        return bisect_left(self.records, offset, key=lambda each: each.offset)


class Broker:
    """All logs. `appended` is called with each record of a log, `unacknowledged` with each record whose acknowledgement
    is lost: its writer appends it again."""

    def __init__(self, kernel: Kernel, kafka: KafkaSettings) -> None:
        self.kernel = kernel
        self.kafka = kafka
        self.host = Host("broker")
        self.away_until = 0.0
        self.bytes: dict[str, int] = {}
        self.largest: dict[str, int] = {}
        self.read: dict[tuple[str, int], int] = {}  # records, by log and the process that has read them
        self.control_at: list[float] = []  # the time of each record of the control log
        self.appended: list[Callable[[str, Record], None]] = []
        self.unacknowledged: list[Callable[[str, Record], None]] = []
        self.lost_acknowledgements = 0  # the number of coming appends that are written, and time out
        self.topics: dict[str, list[Partition]] = {}
        for each in specifications(kafka):
            retention_s = int(each.configs.get("retention.ms", 0)) / 1000 or float("inf")
            self.topics[each.name] = [
                Partition(each.name, number, each.compacted, retention_s, Waiters(kernel))
                for number in range(each.partitions)
            ]

    def partition(self, topic: str, number: int) -> Partition:
        return self.topics[topic][number]

    def log(self, name: str) -> list[Partition]:
        return self.topics[self.kafka.topic(name)]

    def name(self, partition: Partition) -> str:
        return partition.topic.removeprefix(self.kafka.prefix)

    def ready_at(self, partition: Partition) -> float:
        """The time at which it answers next."""
        return max(self.away_until, partition.leader_at)

    def append(self, partition: Partition, key: bytes | None, value: bytes | None) -> Record:
        timestamp = int(self.kernel.wall_s(self.host) * 1000)
        record = Record(partition.end, partition.number, key or b"", value, timestamp)
        partition.records.append(record)
        partition.end += 1
        if partition.topic.endswith("control"):
            self.control_at.append(self.kernel.now)
        size = len(record.key) + len(value or b"")
        name = self.name(partition)
        self.bytes[name] = self.bytes.get(name, 0) + size
        self.largest[name] = max(self.largest.get(name, 0), size)
        for call in self.appended:
            call(name, record)
        partition.waiters.notify()
        return record

    def clean(self) -> None:
        """Retention and compaction."""
        for partitions in self.topics.values():
            for each in partitions:
                if each.compacted:
                    self._compact(each)
                else:
                    self._cut(each)

    def delete_before(self, name: str, offset: int) -> None:
        """Remove the beginning of a log of one partition."""
        (each,) = self.log(name)
        self._remove(each, each.index(offset))

    def _remove(self, each: Partition, count: int) -> None:
        del each.records[:count]
        each.first = each.records[0].offset if each.records else each.end

    def _cut(self, each: Partition) -> None:
        """Remove records older than 1.25 times the retention: Kafka deletes whole segments."""
        oldest_ms = int((self.kernel.wall_s(self.host) - 1.25 * each.retention_s) * 1000)
        if each.records and each.records[0].timestamp < oldest_ms:
            keep = next((n for n, r in enumerate(each.records) if r.timestamp >= oldest_ms), len(each.records))
            self._remove(each, keep)
            self.kernel.count("logs cut by retention")

    def _compact(self, each: Partition) -> None:
        """Keep the last record of each key, records from the first one younger than a day on, and the last record of
        the log: Kafka begins a segment only with an append, and does not compact the newest segment."""
        if self.kernel.now < each.compacted_at + _HOUR_S or len(each.records) < 2:
            return
        each.compacted_at = self.kernel.now
        young_ms = int((self.kernel.wall_s(self.host) - 24 * _HOUR_S) * 1000)
        young = next((record.offset for record in each.records if record.timestamp >= young_ms), each.end - 1)
        last = {record.key: record.offset for record in each.records}
        kept = [
            record
            for record in each.records
            if record.offset >= young or (last[record.key] == record.offset and record.value is not None)
        ]
        if len(kept) < len(each.records):
            self.kernel.count("logs compacted")
            each.records[:] = kept


class _Sent:
    """A sent record: the future of `send`."""

    def __init__(
        self,
        partition: Partition,
        key: bytes | None,
        value: bytes | None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.partition, self.key, self.value = partition, key, value
        self._loop = loop
        self.settled = False
        self._calls: list[Callable[[Any], object]] = []
        self._error_calls: list[Callable[[BaseException], object]] = []
        self.outcome: Any = None

    def add_callback(self, call: Callable[[Any], object]) -> _Sent:
        if self.settled and not isinstance(self.outcome, BaseException):
            call(self.outcome)
        self._calls.append(call)
        return self

    def add_errback(self, call: Callable[[BaseException], object]) -> _Sent:
        if self.settled and isinstance(self.outcome, BaseException):
            call(self.outcome)
        self._error_calls.append(call)
        return self

    def settle(self, outcome: Any) -> None:
        if self.settled:
            return
        self.settled, self.outcome = True, outcome
        for call in self._error_calls if isinstance(outcome, BaseException) else self._calls:
            if self._loop is None:
                call(outcome)
            else:
                self._loop.call_soon_threadsafe(call, outcome)


class SimulatedProducer:
    """A KafkaProducer, and a LoopProducer: with `attach`, outcomes are settled on the event loop."""

    broken = False

    def __init__(self, broker: Broker, process: Process, timeout_s: float, most_bytes: int) -> None:
        self._broker, self._kernel, self._process = broker, broker.kernel, process
        self._timeout_s, self._most_bytes = timeout_s, most_bytes
        self._in_flight: dict[_Sent, None] = {}
        self._order: dict[tuple[str, int], deque[_Sent]] = {}
        self._given_up = False
        self._waiters = Waiters(self._kernel)
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def drained(self, timeout: float) -> None:
        until = self._kernel.now + timeout
        while self._in_flight and not self._given_up and self._kernel.now < until:
            await asyncio.sleep(0.01)

    def partitions_for(self, topic: str) -> set[int]:
        self._wait_for_broker()
        return set(range(len(self._broker.topics[topic])))

    def _wait_for_broker(self) -> None:
        until = self._kernel.now + self._timeout_s
        if self._broker.away_until > self._kernel.now:
            self._kernel.sleep(min(self._broker.away_until, until) - self._kernel.now)
        if self._broker.away_until > self._kernel.now:
            raise errors.KafkaTimeoutError("the broker does not answer")

    def send(
        self, topic: str, value: bytes | None = None, key: bytes | None = None, *, partition: int | None = None
    ) -> _Sent:
        self._kernel.check_alive()
        if self._kernel.current is not None:
            self._process.step()
        assert partition is not None
        sent = _Sent(self._broker.partition(topic, partition), key, value, self._loop)
        if len(value or b"") > self._most_bytes:
            raise errors.MessageSizeTooLargeError("the record is too large")
        if self._given_up:
            raise errors.KafkaError("the producer is closed")
        self._in_flight[sent] = None
        queue = self._order.setdefault((topic, partition), deque())
        queue.append(sent)
        if len(queue) == 1:
            self._kernel.call(_NETWORK_S * (1 + self._kernel.random.random()), lambda: self._write(queue))
        self._kernel.call(self._timeout_s, lambda: self._late(sent))
        return sent

    def _write(self, queue: deque[_Sent]) -> None:
        """Write the waiting records together."""
        if self._given_up or not self._process.alive or not queue:
            return
        ready_at = self._broker.ready_at(queue[0].partition)
        if ready_at > self._kernel.now:
            self._kernel.call(min(ready_at - self._kernel.now, 0.1), lambda: self._write(queue))
            return
        written = [sent for sent in queue if not sent.settled]
        queue.clear()
        if not written:
            return
        records = [(sent, self._broker.append(sent.partition, sent.key, sent.value)) for sent in written]
        if self._broker.lost_acknowledgements > 0:
            self._broker.lost_acknowledgements -= 1
            self._kernel.count("appends that timed out and are in the log", len(records))
            for sent, record in records:
                for call in self._broker.unacknowledged:
                    call(self._broker.name(sent.partition), record)
            return  # `_late` settles them
        delay_s = _NETWORK_S * (1 + self._kernel.random.random())
        self._kernel.call(delay_s, lambda: self._acknowledge(records))

    def _acknowledge(self, records: Sequence[tuple[_Sent, Record]]) -> None:
        if not self._process.alive or self._given_up:
            return
        with self._kernel.as_process(self._process):
            for sent, record in records:
                self._in_flight.pop(sent, None)
                sent.settle(Acknowledged(record.partition, record.offset))
        if not self._in_flight:
            self._waiters.notify()

    def _late(self, sent: _Sent) -> None:
        if sent.settled or not self._process.alive or self._given_up:
            return
        self._kernel.count("appends that timed out")
        self._in_flight.pop(sent, None)
        with self._kernel.as_process(self._process):
            sent.settle(errors.KafkaTimeoutError("no answer in time"))
        if not self._in_flight:
            self._waiters.notify()

    def flush(self, timeout: float | None = None) -> None:
        self._kernel.check_alive()
        until = None if timeout is None else self._kernel.now + timeout
        while self._in_flight and not self._given_up:
            left_s = None if until is None else until - self._kernel.now
            if left_s is not None and left_s <= 0:
                raise errors.KafkaTimeoutError("not everything was acknowledged in time")
            self._waiters.wait(left_s)

    def close(self, timeout: float | None = None) -> None:
        if self._process.alive and self._kernel.current is not None:
            with contextlib.suppress(errors.KafkaTimeoutError):
                self.flush(timeout)
        self.abort()

    def abort(self) -> None:
        """Some of the sent records may be written."""
        if not self._given_up and self._process.alive:
            self._given_up = True
            for queue in self._order.values():
                land(self._broker, queue, self._kernel.random.randrange(len(queue) + 1))
        self._given_up = True
        self._in_flight.clear()

    def die(self) -> None:
        """The process was killed: some of the records that it sent first may be written."""
        if not self._given_up:
            self._given_up = True
            for queue in self._order.values():
                land(self._broker, queue, self._kernel.random.randrange(len(queue) + 1))


def land(broker: Broker, queue: deque[_Sent], count: int) -> None:
    if queue and broker.ready_at(queue[0].partition) <= broker.kernel.now:
        for sent in list(queue)[:count]:
            if not sent.settled:
                broker.append(sent.partition, sent.key, sent.value)
    queue.clear()


class SimulatedConsumer:
    """A KafkaConsumer without a group."""

    def __init__(self, broker: Broker, process: Process, max_records: int, timeout_s: float) -> None:
        self._broker, self._kernel, self._process = broker, broker.kernel, process
        self._max_records, self._timeout_s = max_records, timeout_s
        self._positions: dict[TopicPartition, int] = {}
        self._partitions: dict[TopicPartition, Partition] = {}

    def _of(self, each: TopicPartition) -> Partition:
        return self._broker.partition(each.topic, each.partition)

    def _request(self, partitions: Sequence[Partition], timeout_ms: int | None = None) -> None:
        """A request and its answer."""
        self._kernel.check_alive()
        timeout_s = self._timeout_s if timeout_ms is None else timeout_ms / 1000
        until = self._kernel.now + timeout_s
        ready_at = max([self._broker.away_until, *map(self._broker.ready_at, partitions)])
        if ready_at > self._kernel.now:
            self._kernel.sleep(min(ready_at, until) - self._kernel.now)
            if max([self._broker.away_until, *map(self._broker.ready_at, partitions)]) > self._kernel.now:
                raise errors.KafkaTimeoutError("no answer in time")
        self._kernel.sleep(_NETWORK_S * (1 + self._kernel.random.random()))

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._positions = {each: self._positions.get(each, 0) for each in partitions}
        self._partitions = {each: self._of(each) for each in partitions}

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._positions[partition] = offset

    def position(self, partition: TopicPartition) -> int:
        return self._positions[partition]

    def highwater(self, partition: TopicPartition) -> int | None:
        return self._of(partition).end

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        self._kernel.check_alive()
        found = self._broker.topics.get(topic)
        return None if found is None else set(range(len(found)))

    def topic_id(self, topic: str) -> str:
        return topic

    def beginning_offsets(
        self, partitions: Sequence[TopicPartition], timeout_ms: int | None = None
    ) -> Mapping[TopicPartition, int]:
        self._request([self._of(each) for each in partitions], timeout_ms)
        return {each: self._of(each).first for each in partitions}

    def end_offsets(
        self, partitions: Sequence[TopicPartition], timeout_ms: int | None = None
    ) -> Mapping[TopicPartition, int]:
        self._request([self._of(each) for each in partitions], timeout_ms)
        return {each: self._of(each).end for each in partitions}

    def offsets_for_times(self, timestamps: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Any]:
        self._request([self._of(each) for each in timestamps])
        found: dict[TopicPartition, OffsetAtTime | None] = {}
        for each, at_ms in timestamps.items():
            records = self._of(each).records
            offset = next((record.offset for record in records if record.timestamp >= at_ms), None)
            found[each] = None if offset is None else OffsetAtTime(offset)
        return found

    def poll(self, timeout_ms: int = 0, max_records: int | None = None) -> Mapping[TopicPartition, Sequence[Record]]:
        self._kernel.check_alive()
        most = min(self._max_records, max_records or self._max_records)
        found = self._fetch(most)
        if found or timeout_ms <= 0:
            return found
        fiber = self._kernel.current
        assert fiber is not None
        entry = fiber, fiber.turn + 1
        for each in self._partitions.values():
            each.waiters._waiting.append(entry)
        try:
            woken = self._kernel.block(timeout_ms / 1000, stretches=True)
        finally:
            for each in self._partitions.values():
                if entry in each.waiters._waiting:
                    each.waiters._waiting.remove(entry)
        if woken:
            self._kernel.sleep(_NETWORK_S)
        return self._fetch(most)

    def _fetch(self, most: int) -> dict[TopicPartition, list[Record]]:
        found: dict[TopicPartition, list[Record]] = {}
        for each, partition in self._partitions.items():
            position = self._positions[each]
            if position < partition.first or position > partition.end:
                raise errors.OffsetOutOfRangeError(f"{each}: {position}")
            if position == partition.end or self._broker.ready_at(partition) > self._kernel.now or not most:
                continue
            index = partition.index(position)
            records = partition.records[index : index + most]
            if self._process.lag_s and partition.topic.endswith("control"):
                seen = self._kernel.now - self._process.lag_s
                records = [record for record in records if self._broker.control_at[record.offset] <= seen]
                if not records:
                    continue
            most -= len(records)
            self._positions[each] = records[-1].offset + 1 if records else partition.end
            if index + len(records) >= len(partition.records):
                self._positions[each] = partition.end
            if records:
                found[each] = records
                key = partition.topic.removeprefix(self._broker.kafka.prefix), self._process.pid
                self._broker.read[key] = self._broker.read.get(key, 0) + len(records)
        return found

    def close(self, autocommit: bool = True, timeout_ms: int | None = None) -> None:
        self._positions.clear()
        self._partitions.clear()


def connected(broker: Broker, arguments: dict[str, Any]) -> Any:
    """Replaces `core.eventlog.client._connected`: a client of the running process."""
    kernel = broker.kernel
    kernel.check_alive()
    process = kernel.running
    assert process is not None
    timeout_s = arguments.get("max_block_ms", arguments.get("request_timeout_ms", 10_000)) / 1000
    if broker.away_until > kernel.now:
        kernel.sleep(min(broker.away_until - kernel.now, timeout_s))
        if broker.away_until > kernel.now:
            raise errors.KafkaTimeoutError("the broker does not answer")
    if "max_request_size" in arguments:
        producer = SimulatedProducer(broker, process, timeout_s, arguments["max_request_size"])
        process.at_death.append(producer.die)
        return producer
    return SimulatedConsumer(broker, process, arguments["max_poll_records"], timeout_s)


__all__ = ["EPOCH_S", "Broker", "Fiber", "Record", "connected"]
