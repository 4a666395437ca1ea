"""The records of the `parked` log: deliveries that are not finished.

    key                        value
    <delivery>                 Parked | null    the delivery waits, with its message; null: it is finished
    <delivery>\\ttried          Tried | null     its tries since

An operator's Tried has the same number of tries, decided later: an attempt is requested.

A delivery is one notification for one subscription, identified by the subscription and the notification's place in its
log, which is the order within a lane. The log is compacted, so it has waiting deliveries and little else. All records
of a subscription are in one partition, except those from before partitions were added. MessagePack, versioned.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from arborcast.core import fence
from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import Acknowledgement, Producer, make_producer
from arborcast.core.eventlog.damaged import unless_damaged
from arborcast.core.eventlog.topics import PARKED_OVERHEAD, RESULTS_LOG
from arborcast.core.eventlog.writers import DurableWriter
from arborcast.core.settings import KafkaSettings
from arborcast.core.versions import RecordCodec
from arborcast.core.wall_clock import is_due
from arborcast.dispatch.logs import dead_letters
from arborcast.dispatch.logs.attempts import partition_of_subscription
from arborcast.dispatch.logs.dead_letters import DeadLetter
from arborcast.dispatch.logs.held_lanes import HeldLanes
from arborcast.topic_model.records import results
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.results import Result

VERSION = 1

# Prefix of the push's id in `Tries.awaits` while its worker waits for the answer.
UNANSWERED_PUSH = ">"


class Place(NamedTuple):
    """The place of a notification: the batch, and the partition and offset in the `notifications` log. Places of one
    topic are in the order of acceptance, also after the log was created again or got more partitions: numbers of
    batches grow (see `RUN_NUMBERS`). `redrive` is the time of a redriven dead letter, which late records of its first
    delivery cannot end."""

    batch: int
    partition: int
    offset: int
    redrive: int = 0


class Tries(NamedTuple):
    """The tries of a delivery: pushes made, those that count against it, the time of the next one, and the time of that
    decision. `awaits` is the push whose receiver reports the result by that time; that push counts with its result.
    With the prefix UNANSWERED_PUSH it is a push without an answer yet, whose worker will write the result."""

    number: int = 0
    counted: int = 0
    due_ms: int = 0
    decided_ms: int = 0
    awaits: str = ""

    def is_due(self, now_ms: int) -> bool:
        if self.awaits:
            return self.due_ms <= now_ms  # the receiver has the message, whatever the clock
        return is_due(self.due_ms, self.decided_ms, now_ms)

    def requested(self, now_ms: int) -> Tries:
        """The same, due now: an operator requests an attempt."""
        # Clocks differ: the request must be later than the last decision.
        at_ms = max(now_ms, self.decided_ms + 1)
        return self._replace(due_ms=at_ms, decided_ms=at_ms)

    @property
    def in_flight(self) -> bool:
        """Whether its first push has no answer yet: no other first attempt of its lane begins meanwhile."""
        return self.awaits.startswith(UNANSWERED_PUSH)

    @property
    def was_refused(self) -> bool:
        """Whether its last push, together with others, was permanently refused; otherwise it would have to wait."""
        return self.counted > 0 and self.due_ms <= self.decided_ms and not self.awaits


class Delivery(NamedTuple):
    subscription: str
    place: Place

    def key(self) -> bytes:
        batch, partition, offset, redrive = self.place
        again = f".{redrive}" if redrive else ""
        return f"{self.subscription}\t{batch}.{partition}.{offset}{again}".encode()

    def tried_key(self) -> bytes:
        return self.key() + b"\ttried"


class Parked(msgspec.Struct, frozen=True, tag="parked"):
    notification: Notification
    tries: Tries


class Tried(msgspec.Struct, frozen=True, tag="tried"):
    """A further try of a delivery that waits again."""

    tries: Tries


_codec = RecordCodec[Parked | Tried](Parked | Tried, "a record of a parked delivery", VERSION)

encode, decode = _codec.encode, _codec.decode
"""The Kafka value of a record. `decode` raises RecordVersionError if a newer Arborcast wrote it."""


def decode_key(key: bytes) -> tuple[Delivery, bool]:
    """The delivery of a Kafka key, and whether the key is that of its tries. Raises InfrastructureError."""
    try:
        subscription, place, *tried = (key or b"").decode().split("\t")
        numbers = [int(number) for number in place.split(".")]
        return Delivery(subscription, Place(*numbers)), bool(tried)
    except (ValueError, TypeError) as error:
        raise InfrastructureError(f"the key {key!r} is not that of a parked delivery") from error


class ParkedRecord(NamedTuple):
    """`record` is None for a null; `of_tries`: its key is that of the delivery's tries."""

    delivery: Delivery
    of_tries: bool
    record: Parked | Tried | None


def readable(key: bytes, value: bytes | None, place: object) -> ParkedRecord | None:
    """A record of the log; None for a damaged one (see `core.eventlog.damaged`). Raises RecordVersionError."""
    return unless_damaged("parked", place, _decode_record, key, value)


def _decode_record(key: bytes, value: bytes | None) -> ParkedRecord:
    return ParkedRecord(*decode_key(key), None if value is None else decode(value))


def readable_letter(key: bytes, value: bytes | None, place: object) -> tuple[Delivery, DeadLetter | None] | None:
    """As `readable`, for a record of the `dead` log."""
    return unless_damaged("dead", place, _decode_letter, key, value)


def _decode_letter(key: bytes, value: bytes | None) -> tuple[Delivery, DeadLetter | None]:
    return decode_key(key)[0], None if value is None else dead_letters.decode(value)


def with_parked_overhead(kafka: KafkaSettings) -> KafkaSettings:
    """Settings for these logs, whose records contain a whole notification and more."""
    return dataclasses.replace(kafka, max_record_bytes=kafka.max_record_bytes + PARKED_OVERHEAD)


class ParkingLog(DurableWriter):
    """The `parked` log, with the last record of each lane; and the `results` of parked deliveries. Used by one
    thread."""

    def __init__(
        self,
        kafka: KafkaSettings,
        connect: Callable[[KafkaSettings], Producer] = make_producer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(with_parked_overhead(kafka), "parked", connect, clock)
        self._results = DurableWriter(kafka, RESULTS_LOG, connect, clock)  # connects with the first result
        self.held = HeldLanes(self.has)
        """The lanes with records of this writer."""

    def park(self, delivery: Delivery, notification: Notification, tries: Tries, in_turn: bool = False) -> int:
        """Park a delivery; returns the record's number. A tried delivery has had its turn, and does not hold its lane,
        unless its subscription is `in_turn`, or the push is still in flight."""
        fence.wait()
        lane = delivery.subscription
        holds = in_turn or not tries.number or tries.in_flight
        value, label = encode(Parked(notification, tries)), lane if holds else ""
        number = self.send(partition_of_subscription(lane, self.partitions), value, delivery.key(), label)
        if label:
            self.held.sent(lane, number)
        return number

    def tried(self, delivery: Delivery, tries: Tries, everywhere: bool = False) -> None:
        """`everywhere`: in all partitions, since there may have been fewer when the delivery was parked."""
        for partition in self._partitions_of(delivery, everywhere):
            self.send(partition, encode(Tried(tries)), delivery.tried_key())

    def finished(self, delivery: Delivery, tried: bool, everywhere: bool = False) -> None:
        """A delivery no longer waits. `tried`: a record of its attempts is removed, too. `everywhere` as for
        `tried`."""
        for partition in self._partitions_of(delivery, everywhere):
            if tried:
                self.send(partition, None, delivery.tried_key())
            self.send(partition, None, delivery.key())

    def _partitions_of(self, delivery: Delivery, everywhere: bool) -> Iterable[int]:
        count = self.partitions
        return range(count) if everywhere else (partition_of_subscription(delivery.subscription, count),)

    def answered(self, result: Result) -> None:
        """Write the answer to a push whose deliveries are parked."""
        key, value = results.encode(result)
        self._results.send(0, value, key)  # the log has one partition

    def is_behind(self, seconds: float) -> bool:
        return super().is_behind(seconds) or self._results.is_behind(seconds)

    def settle(self, timeout_s: float) -> None:
        super().settle(timeout_s)
        self._results.settle(timeout_s)

    def acknowledged(self, number: int, label: str, acknowledgement: Acknowledgement) -> None:
        if label:
            self.held.written(label, acknowledgement.partition, acknowledgement.offset)

    def close(self) -> None:
        super().close()
        self._results.close()
        self.held.take_reach()


class DeadLetterLog(DurableWriter):
    """The `dead` log. Used by one thread."""

    def __init__(
        self,
        kafka: KafkaSettings,
        connect: Callable[[KafkaSettings], Producer] = make_producer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(with_parked_overhead(kafka), "dead", connect, clock)

    def write_dead_letter(self, delivery: Delivery, letter: DeadLetter) -> int:
        """Write a dead letter; returns the record's number."""
        fence.wait()
        partition = partition_of_subscription(delivery.subscription, self.partitions)
        return self.send(partition, dead_letters.encode(letter), delivery.key())

    def forget(self, delivery: Delivery) -> None:
        """Remove a redriven or purged letter. From all partitions: there may have been fewer when it was written."""
        for partition in range(self.partitions):
            self.send(partition, None, delivery.key())
