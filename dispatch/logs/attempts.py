"""The records of the `attempts` log: outcomes, and numbers of recipients.

One attempt is one notification in one push to one subscription: notifications of one wsnt:Notify are several attempts
with the same `push` and outcome. Attempts have all columns of the tables, which can be rebuilt from this log alone.

MessagePack, versioned; the key is the batch. A Kafka record has many attempts: one record for each would cost five
times as much.
"""

from __future__ import annotations

import math
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import msgspec

from arborcast.core.eventlog.client import Producer, make_producer
from arborcast.core.eventlog.damaged import unless_damaged
from arborcast.core.eventlog.writers import DurableWriter
from arborcast.core.settings import KafkaSettings
from arborcast.core.versions import Versioned, VersionedCodec
from arborcast.topic_model.topics import TopicPath

VERSION = 1

# A record is full with this number of bytes: some two hundred attempts, well below the broker's limit.
RECORD_BYTES = 64 * 1024

# Subscriptions with a minimum interval in one piece of a notification's matches. An id has some forty bytes.
_MOST_PASSED = 1_000

State = Literal["delivered", "parked", "dead", "expired", "cancelled", "dropped"]
"""The state of the delivery: taken by the receiver; pending until `next_ms`; given up, and kept as a dead letter;
expired; cancelled; left out by its subscription's reliability. All but `parked` are final."""

NO_BATCH = -1

# Waiting deliveries are ordered by the number of their run or batch, and rows are found by it. So each start of the
# query is a run with a range of numbers above all numbers in the logs: in batch mode one per batch, in real time one
# per millisecond. With 25 batches a second a range lasts for a thousand years.
RUN_NUMBERS = 10**12

FINAL: frozenset[State] = frozenset({"delivered", "dead", "expired", "cancelled", "dropped"})
"""The final states of a delivery."""

ErrorClass = Literal[
    "",  # none: delivered
    "address",  # a forbidden or impossible address
    "dns",  # the host name has no address
    "connect",  # no connection: refused, unreachable, or not within connect_timeout_s
    "tls",  # no trust: certificate or handshake
    "timeout",  # no complete answer within total_timeout_s
    "disconnected",  # the connection was closed before the status line
    "protocol",  # the answer is not HTTP
    "redirect",  # 3xx: redirects are not followed
    "client-error",  # 4xx
    "server-error",  # 5xx
    "later",  # accepted, with a later result
    "reported",  # the later result is a failure, with the receiver's text in the detail
    "no-result",  # no later result in time
    "waiting",  # no attempt yet, since the redelivery serves the lane; or no answer yet
    "envelope",  # no message could be encoded for this subscription
    "lifespan",  # too old
    "ended",  # the subscription ended
    "redriven",  # a dead letter was redriven
    "purged",  # a dead letter was purged
    "erased",  # an operator erased the payload
    "timely",  # dropped, since it could not be pushed at once
    "resources",  # dropped, since too many messages of the subscription wait
    "skipped",  # no attempt: conditions do not match or cost too much, or a trigger cannot publish
    "hops",  # a trigger published nothing: too many triggers in a row, or publications of one cause
    "merged",  # delivered together with an equal request
    "invalid",  # every worker of the queue refused the request
    "internal",  # a defect of the engine
]


def erased_by(erasure: str) -> str:
    """The detail of a row with the error "erased"."""
    return f"its payload was erased: erasure {erasure}"


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One attempt at a delivery. Times are milliseconds since the epoch, UTC.

    `push` identifies the HTTP request, `number` counts the attempts from 1; without a push so far it is 0, and `push`
    empty. `next_ms` is the time of the next attempt of a parked delivery; 0 if it is not parked, or has its turn with
    its lane. `status` is 0 without an HTTP answer. `request_bytes` is the size of the request body, which `messages`
    notifications shared. `batch` is NO_BATCH for the redelivery. `lapsed`: it expired at a time set by its publisher,
    so there is no dead letter.

    The last row of a delivery counts, in the order of the log; but rows of a batch precede those of the redelivery,
    which may have read the parked delivery before the batch wrote its row.
    """

    notification: str
    subscription: str
    topic: TopicPath
    endpoint: str
    number: int
    push: str
    state: State
    accepted_ms: int
    started_ms: int
    duration_ms: float
    error: ErrorClass = ""
    detail: str = ""
    status: int = 0
    messages: int = 1
    request_bytes: int = 0
    response_bytes: int = 0
    response: bytes = b""
    reused: bool = False
    batch: int = 0
    next_ms: int = 0
    lapsed: bool = False


class Matched(msgspec.Struct, frozen=True, array_like=True):
    """The number of `subscriptions` that a notification matched, also 0. `passed` are the subscriptions with a minimum
    interval that let it pass, `thinned` is the number of the others; if `passed` is larger than a record, the
    notification is there several times. `caused`: a trigger has published it; after a crash it may be in its log again,
    for the same subscriptions."""

    notification: str
    topic: TopicPath
    accepted_ms: int
    offset: int
    subscriptions: int
    passed: tuple[str, ...] = ()
    thinned: int = 0
    caused: bool = False
    priority: int = 0


class Evaluation(msgspec.Struct, frozen=True):
    """The matches of a batch in one partition of the notifications. `control` is the offset up to which the control log
    was read: its fold up to there has the same subscriptions."""

    partition: int
    batch: int
    control: int
    matched: list[Matched]


class AttemptsRecord(Versioned, frozen=True, omit_defaults=True):
    """One record of the log: the attempts, and an evaluation if it has one."""

    attempts: list[Attempt]
    evaluation: Evaluation | None = None


_encoder = msgspec.msgpack.Encoder()

decode = VersionedCodec(AttemptsRecord, "an attempts record", VERSION).decode


class _Evaluated(Versioned, frozen=True):
    """A record that is decoded without its attempts."""

    evaluation: Evaluation | None = None


_evaluated = VersionedCodec(_Evaluated, "an attempts record", VERSION)


def pack(attempt: Attempt) -> bytes:
    return _encoder.encode(attempt)


def join(packed: Iterable[bytes]) -> bytes:
    """The Kafka value that holds these attempts in order."""
    return _encoder.encode({"v": VERSION, "attempts": [msgspec.Raw(each) for each in packed]})


def encode(*attempts: Attempt) -> bytes:
    """The Kafka value that holds these attempts in order, whatever their size."""
    return join(map(pack, attempts))


def key_of(batch: int) -> bytes:
    """The key of the records of a batch, or of NO_BATCH: a search for a batch skips the values of others."""
    return b"%d" % batch


def batch_of(key: bytes | None) -> int | None:
    """The batch of a key; None for another key."""
    return int(key) if key and key.removeprefix(b"-").isdigit() else None


def encode_evaluation(evaluation: Evaluation) -> Iterator[bytes]:
    """Kafka values with an evaluation, each of a bounded size."""

    def joined() -> bytes:
        head = {"partition": evaluation.partition, "batch": evaluation.batch, "control": evaluation.control}
        return _encoder.encode({"v": VERSION, "attempts": (), "evaluation": head | {"matched": packed}})

    packed: list[msgspec.Raw] = []
    size = 0
    for matched in evaluation.matched:
        for each in _in_pieces(matched):
            value = msgspec.Raw(_encoder.encode(each))
            if packed and size + len(value) > RECORD_BYTES:
                yield joined()
                packed, size = [], 0
            packed.append(value)
            size += len(value)
    if packed:
        yield joined()


def _in_pieces(matched: Matched) -> Iterator[Matched]:
    if len(matched.passed) <= _MOST_PASSED:
        yield matched
        return
    for first in range(0, len(matched.passed), _MOST_PASSED):
        yield msgspec.structs.replace(matched, passed=matched.passed[first : first + _MOST_PASSED])


_NOTHING = AttemptsRecord(VERSION, [])


def readable(value: bytes) -> AttemptsRecord:
    """The record in one Kafka value; without attempts for a damaged one. Raises RecordVersionError."""
    return unless_damaged("attempts", f"{len(value)} bytes", decode, value) or _NOTHING


def evaluation_in(value: bytes | None) -> Evaluation | None:
    """The evaluation in one Kafka value; None without one, or if it is damaged. Raises RecordVersionError."""
    read = unless_damaged("attempts", f"{len(value or b'')} bytes", _evaluated.decode, value)
    return None if read is None else read.evaluation


def partition_of_subscription(subscription_id: str, partitions: int) -> int:
    """The partition of all records about a subscription in the logs `attempts`, `parked` and `dead`: they are read in
    the order written. Not Kafka's hash (`core.eventlog.client.partition_of_key`): this one is in C, and is computed for
    each attempt. It must never change: the null that removes a record must be in the same partition."""
    return zlib.crc32(subscription_id.encode()) % partitions


# Interval of writes. If a worker dies, the pushes of unwritten outcomes are repeated, as are those in flight.
WRITE_S = 0.1

# Records without Kafka's acknowledgement after this time are late: Kafka is unavailable or overloaded.
BEHIND_S = 0.5


class AttemptsLog(DurableWriter):
    """Collects attempts and writes many per Kafka record, without long waits. For one thread. A record has attempts of
    one batch, which is its key."""

    def __init__(
        self,
        kafka: KafkaSettings,
        connect: Callable[[KafkaSettings], Producer] = make_producer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(kafka, "attempts", connect, clock)
        self._batch = NO_BATCH
        self._open: defaultdict[int, list[bytes]] = defaultdict(list)  # packed attempts, by partition
        self._sizes: defaultdict[int, int] = defaultdict(int)
        self._written_at = clock()

    def add(self, attempt: Attempt) -> None:
        """Add an attempt; full records are sent without waiting. May have to connect first."""
        if attempt.batch != self._batch:
            self.write()
            self._batch = attempt.batch
        partition = partition_of_subscription(attempt.subscription, self.partitions)
        packed = pack(attempt)
        self._open[partition].append(packed)
        self._sizes[partition] += len(packed)
        if self._sizes[partition] >= RECORD_BYTES:
            self._write_partition(partition)

    def add_matched(self, partition: int, batch: int, control: int, matched: list[Matched]) -> None:
        """Send the evaluations of a partition's notifications, without waiting."""
        for value in encode_evaluation(Evaluation(partition, batch, control, matched)):
            self.send(partition % self.partitions, value, key_of(batch))

    def write_due(self) -> None:
        """Send the collected attempts, without waiting, if WRITE_S has passed. Must be called often."""
        if self._open and self._clock() - self._written_at >= WRITE_S:
            self.write()

    def due_s(self) -> float:
        """Seconds until `write_due` has something to send; infinite if nothing is collected."""
        return max(0.0, self._written_at + WRITE_S - self._clock()) if self._open else math.inf

    def write(self) -> int:
        """Send the collected attempts, without waiting; returns the number for `has_all`."""
        while self._open:  # `send` may have to settle, which writes the others
            self._write_partition(next(iter(self._open)))
        self._written_at = self._clock()
        return self.sent

    def settle(self, timeout_s: float) -> None:
        self.write()
        super().settle(timeout_s)

    def close(self) -> None:
        super().close()
        self._open.clear()
        self._sizes.clear()

    def _write_partition(self, partition: int) -> None:
        del self._sizes[partition]
        self.send(partition, join(self._open.pop(partition)), key_of(self._batch))
