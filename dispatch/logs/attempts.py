"""Attempt records: what the `attempts` log holds, many per Kafka record.

One attempt is one notification in one push to one subscription. Several notifications that travelled in one wsnt:Notify
are several attempts with the same `push` and the same outcome. An attempt says all that the tables show, so that they
can be rebuilt from this log alone, and enough (notification, subscription, number) for a retry to be derived from it.

MessagePack, versioned like the other logs; the key names the batch that has made them. Many in a record because a Kafka
record per attempt costs five times as much as one per few hundred.
"""

from __future__ import annotations

import logging
import math
import time
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import msgspec

from arborcast.core.errors import InfrastructureError, RecordVersionError
from arborcast.core.eventlog.client import Producer, make_producer
from arborcast.core.eventlog.writers import DurableWriter
from arborcast.core.settings import KafkaSettings
from arborcast.core.versions import Versioned, VersionedCodec
from arborcast.topic_model.topics import TopicPath

logger = logging.getLogger(__name__)

VERSION = 1

# A record is full with this number of bytes: some two hundred attempts, well below the broker's limit.
RECORD_BYTES = 64 * 1024

# Subscriptions with a minimum interval in one piece of a notification's matches. An id has some forty bytes.
_MOST_PASSED = 1_000

State = Literal["delivered", "parked", "dead", "expired", "cancelled", "dropped"]
"""The state of the delivery: taken by the receiver; to be tried (again) at `next_ms`; given up, and kept as a dead
letter; too old; not wanted any more; left out by its subscription's reliability. All but `parked` are final."""

NO_BATCH = -1

# Waiting deliveries are ordered by the number of their run or batch, and rows are found by it. So each start of the
# query is a run with a range of numbers above all in the logs: in batches one per batch, in real time one per
# millisecond. With 25 batches a second a range lasts for a thousand years.
RUN_NUMBERS = 10**12

FINAL: frozenset[State] = frozenset({"delivered", "dead", "expired", "cancelled", "dropped"})
"""After a row with one of these nothing more happens to a delivery."""

ErrorClass = Literal[
    "",  # none: delivered
    "address",  # the endpoint's URL is not one we push to
    "dns",  # its host name has no address
    "connect",  # no connection: refused, unreachable, or not within connect_timeout_s
    "tls",  # no trust: certificate or handshake
    "timeout",  # connected, but no complete answer within total_timeout_s
    "disconnected",  # the connection broke before the status line was there
    "protocol",  # what came back is not HTTP
    "redirect",  # 3xx: redirects are never followed
    "client-error",  # 4xx
    "server-error",  # 5xx
    "later",  # taken: the receiver says later how it ended
    "reported",  # the receiver, which had taken it, said that it failed; its words are in the detail
    "no-result",  # the receiver, which had taken it, did not say in time how it ended
    "waiting",  # not tried yet: its lane is served by the redelivery; or no answer yet; the detail says which
    "envelope",  # no message could be made for this subscription; the detail says why
    "lifespan",  # too old to be tried again
    "ended",  # the subscription is over
    "redriven",  # a dead letter is tried again
    "purged",  # a dead letter was thrown away
    "erased",  # an operator has erased its payload; the detail names the erasure
    "timely",  # dropped, since it could not be pushed at once; the detail says why
    "resources",  # dropped, since too much waits for its subscription
    "skipped",  # never to be tried: the subscription's conditions do not want it, or cost too much, or a trigger cannot
    # publish because of it; the detail says
    "hops",  # a trigger published nothing: so many triggers in a row, or notifications of theirs, are behind its cause
    "merged",  # delivered, together with an equal request; the detail says with which
    "invalid",  # every server of its queue says that it cannot be done
    "internal",  # our own fault; the detail says what
]


def erased_by(erasure: str) -> str:
    """The detail of a row with the error "erased"."""
    return f"its payload was erased: erasure {erasure}"


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One try to bring one notification to one subscription. Times are milliseconds since the epoch, UTC.

    `push` identifies the HTTP request, `number` counts the tries of this delivery from 1; it is 0, and `push` empty, as
    long as there was none: a delivery that had to wait, or ended, untried. `next_ms` is when a parked delivery may be
    tried again; 0 when it is not parked, or when its turn comes with its lane's. `status` is 0 when there was no HTTP
    answer. `request_bytes` is the size of the whole request body, which `messages` notifications shared. `batch` is -1
    (NO_BATCH) when no batch made the attempt, but the redelivery. `lapsed`, only of an expired one: its publisher had
    set that time, so there is no dead letter.

    Of the rows of a delivery the last one counts, in the order of the log; but rows of a batch come before all those of
    the redelivery, which may take up what a batch has parked before the batch has written that down.
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
    """How many subscriptions a notification matched, also those whose push is still to come. One without any has a
    record, too, and so differs from one that was never matched. `passed` are the subscriptions with a minimum interval
    that let it pass, `thinned` is how many did not; where `passed` is larger than a record, the same notification is
    there several times, each with some of them. `caused`: a trigger has published it; after a crash it may be in its
    log again, for the same subscriptions."""

    notification: str
    topic: TopicPath
    accepted_ms: int
    offset: int
    subscriptions: int
    passed: tuple[str, ...] = ()
    thinned: int = 0
    caused: bool = False


class Evaluation(msgspec.Struct, frozen=True):
    """The matches of a batch in one partition of the notifications. `control` is the offset up to which the control log
    was read: a fold of it up to there has the same subscriptions."""

    partition: int
    batch: int
    control: int
    matched: list[Matched]


class _Batch(Versioned, frozen=True, omit_defaults=True):
    attempts: list[Attempt]
    evaluation: Evaluation | None = None


_encoder = msgspec.msgpack.Encoder()

_codec = VersionedCodec(_Batch, "an attempts record", VERSION)


class _Evaluated(Versioned, frozen=True):
    """A _Batch of which the attempts are passed over."""

    evaluation: Evaluation | None = None


_evaluated = VersionedCodec(_Evaluated, "an attempts record", VERSION)


def pack(attempt: Attempt) -> bytes:
    return _encoder.encode(attempt)


def join(packed: Iterable[bytes]) -> bytes:
    """The Kafka value that holds these attempts in order."""
    return _encoder.encode({"v": VERSION, "attempts": [msgspec.Raw(each) for each in packed]})


def encode(attempts: Iterable[Attempt]) -> Iterator[bytes]:
    """Kafka values holding these attempts in order, as many as need be."""
    packed: list[bytes] = []
    size = 0
    for attempt in attempts:
        packed.append(pack(attempt))
        size += len(packed[-1])
        if size >= RECORD_BYTES:
            yield join(packed)
            packed, size = [], 0
    if packed:
        yield join(packed)


def key_of(batch: int) -> bytes:
    """The key of the records of a batch, or of NO_BATCH: a search for a batch passes over the values of others."""
    return b"%d" % batch


def batch_of(key: bytes | None) -> int | None:
    """The batch that a key names; None when it names none."""
    return int(key) if key and key.lstrip(b"-").isdigit() else None


def encode_evaluation(evaluation: Evaluation) -> Iterator[bytes]:
    """Kafka values holding an evaluation, each of a bounded size."""

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


NOTHING = _encoder.encode(_Batch(VERSION, []))
"""A record without attempts."""


def decode(value: bytes) -> list[Attempt]:
    """The attempts in one Kafka value; raises as `decode_all`."""
    return decode_all(value)[0]


def readable(value: bytes) -> tuple[list[Attempt], Evaluation | None]:
    """As `decode_all`, but a value that cannot be read has no attempts: the process log names it. Raises
    RecordVersionError."""
    try:
        return decode_all(value)
    except RecordVersionError:
        raise
    except InfrastructureError as error:
        logger.error("a record of the attempts log, of %d bytes, is left out: %s", len(value), error)
        return [], None


def decode_all(value: bytes) -> tuple[list[Attempt], Evaluation | None]:
    """The attempts in one Kafka value, and the evaluation, if it has one.

    Raises RecordVersionError for a record of a newer version and InfrastructureError for one that cannot be read.
    """
    batch = _codec.decode(value)
    return batch.attempts, batch.evaluation


def evaluation_in(value: bytes | None) -> Evaluation | None:
    """The evaluation in one Kafka value, if it has one; raises as `decode_all`."""
    return _evaluated.decode(value).evaluation


def partition_of_subscription(subscription_id: str, partitions: int) -> int:
    """The partition for all that is about a subscription in the logs `attempts`, `parked` and `dead`, so that it is
    read in the order written, whatever the records' own keys are.

    Not Kafka's own hash, which `core.eventlog.client.partition_of_key` uses for records that are found by key: this one
    is in C, and is computed for each attempt. It must never change: the null value that removes a record has to be in
    the partition of that record.
    """
    return zlib.crc32(subscription_id.encode()) % partitions


# Outcomes that are not written when a worker dies are of pushes that are made again, beside those under way.
WRITE_S = 0.1

# Records without Kafka's acknowledgement after this time are late: Kafka is away or overloaded.
BEHIND_S = 0.5


class AttemptsLog:
    """Collects attempts and writes many per Kafka record, without long waits. For one thread. No record has attempts of
    two batches; its key names the batch."""

    def __init__(
        self,
        kafka: KafkaSettings,
        connect: Callable[[KafkaSettings], Producer] = make_producer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = DurableWriter(kafka, "attempts", connect)
        self._clock = clock
        self._batch = NO_BATCH
        self._open: defaultdict[int, list[bytes]] = defaultdict(list)  # packed attempts, by partition
        self._sizes: defaultdict[int, int] = defaultdict(int)
        self._written_at = clock()
        self._sent: deque[tuple[int, float]] = deque()  # the number of a record, and when it was sent

    def connect(self) -> Producer:
        """The producer, connected on the first use. Raises InfrastructureError."""
        return self._writer.connect()

    def add(self, attempt: Attempt) -> None:
        """Take an attempt in; full records are sent without waiting. May have to connect first."""
        if attempt.batch != self._batch:
            self._write()
            self._batch = attempt.batch
        partition = partition_of_subscription(attempt.subscription, self._writer.partitions)
        packed = pack(attempt)
        self._open[partition].append(packed)
        self._sizes[partition] += len(packed)
        if self._sizes[partition] >= RECORD_BYTES:
            self._write_partition(partition)

    def add_matched(self, partition: int, batch: int, control: int, matched: list[Matched]) -> None:
        """Send the evaluations of a partition's notifications, without waiting."""
        for value in encode_evaluation(Evaluation(partition, batch, control, matched)):
            self._send(partition % self._writer.partitions, value, batch)

    def write_due(self) -> None:
        """Send the collected attempts, without waiting, when nothing was sent for a while. To be called often."""
        if self._open and self._clock() - self._written_at >= WRITE_S:
            self._write()

    def due_s(self) -> float:
        """In how many seconds `write_due` has something to send; infinite while nothing is taken in."""
        return max(0.0, self._written_at + WRITE_S - self._clock()) if self._open else math.inf

    def write(self) -> int:
        """Send the collected attempts, without waiting; the number for `has_all`."""
        self._write()
        return self._sent[-1][0] if self._sent else 0

    def has_all(self, number: int) -> bool:
        self._look()
        return not self._sent or self._sent[0][0] > number

    def behind(self) -> bool:
        """Whether Kafka is late with acknowledging something."""
        self._look()
        return bool(self._sent) and self._clock() - self._sent[0][1] > BEHIND_S

    def settle(self, timeout_s: float) -> None:
        """Return when everything is acknowledged; repeats records that Kafka refused or did not answer. Raises
        InfrastructureError after `timeout_s`; then their state is unknown."""
        self._write()
        self._writer.settle(timeout_s)
        self._sent.clear()

    def close(self) -> None:
        """Drop the connection and all records without acknowledgement."""
        self._writer.close()
        self._open.clear()
        self._sizes.clear()
        self._sent.clear()

    def _look(self) -> None:
        while self._sent and self._writer.has(self._sent[0][0]):
            self._sent.popleft()

    def _write(self) -> None:
        for partition in list(self._open):
            self._write_partition(partition)
        self._written_at = self._clock()

    def _write_partition(self, partition: int) -> None:
        del self._sizes[partition]
        self._send(partition, join(self._open.pop(partition)), self._batch)

    def _send(self, partition: int, value: bytes, batch: int) -> None:
        self._sent.append((self._writer.send(partition, value, key_of(batch)), self._clock()))
