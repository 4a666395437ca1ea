"""What the driver and the workers of the real-time gear tell each other, in two logs of one partition each.

    log        key             value
    feed       the run         Feed             driver to workers: who is subscribed, what not to push; in order
    progress   the partition   WorkerProgress   worker to driver: how far all is settled, what was seen of endpoints

Nothing in `feed` is of use once its run is over. The last message of each partition in `progress` says where to go on
after a crash: what is before it is settled, and what is behind it has its rows in `attempts`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing

import msgspec

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.consumer import LogConsumer
from arborcast.core.eventlog.scan import LogScan
from arborcast.core.eventlog.topics import FEED_LOG, PROGRESS_LOG
from arborcast.core.eventlog.writers import DurableWriter
from arborcast.core.settings import KafkaSettings
from arborcast.core.threads import Service
from arborcast.core.versions import Versioned, VersionedCodec
from arborcast.dispatch.delivery.health import Sign
from arborcast.dispatch.logs.parked import roomy
from arborcast.topic_model.routing import ViewStep

VERSION = 1
"""Of the records of both logs."""

# Bytes of the lists in a worker's message: half of the smallest kafka.max_record_bytes.
_MOST_BYTES = 32 * 1024

_LATE_S = 5.0

# Longest wait of a fetch for new records.
_WAIT_MS = 2_000

# How long the log is read before it is looked whether this is to end.
_READ_S = 1.0


class ExclusionChange(msgspec.Struct, frozen=True, array_like=True):
    """Differences in what is parked rather than pushed: lanes that are held from now on, and those that are not any
    more, after the log of parked deliveries was read up to these offsets; endpoints and subscriptions that are from now
    on as in `Exclusions`, and those that are not any more."""

    held: frozenset[str] = frozenset()
    freed: frozenset[str] = frozenset()
    read: dict[int, int] = {}
    degraded: frozenset[str] = frozenset()
    watched: frozenset[str] = frozenset()
    unjudged: frozenset[str] = frozenset()
    on_trial: frozenset[str] = frozenset()
    recovered: frozenset[str] = frozenset()
    unwatched: frozenset[str] = frozenset()
    judged: frozenset[str] = frozenset()
    off_trial: frozenset[str] = frozenset()


class WorkerUpdate(msgspec.Struct, frozen=True, array_like=True):
    """The next message to the workers of a run. One with a `base`, the file of a snapshot, begins anew: what was said
    before does not count, and nothing is pushed before one is `complete`. `control` is how far the driver has read the
    control log. On a cluster, where workers cannot open the driver's files, it is the base that their tasks were
    started with. A worker that comes later begins with the last message that has a base: that is at the offset `began`
    or, where this is -1 since that one is written together with this, so many records `back`. `stop` asks the workers
    to take nothing more, and to settle what they have. A message that is larger than a record is cut into several, each
    a `piece` of its bytes, with so many `left` behind it."""

    run: int
    began: int
    back: int
    control: int
    base: bytes = b""
    step: ViewStep | None = None
    diverted: ExclusionChange | None = None
    complete: bool = True
    stop: bool = False
    piece: bytes = b""
    left: int = 0


class WorkerProgress(msgspec.Struct, frozen=True, array_like=True):
    """How things stand in a partition of the `notifications` log.

    Everything before `position` is settled; `clean` says that nothing behind it was begun. If something may have been,
    `since` is the first run whose rows count. `notifications` were matched since the message before, and came to
    `deliveries`, without those that were `thinned` for a minimum interval; `signs` were seen of endpoints, the
    receivers of `gone` have ended their subscriptions, and the conditions of `costly` cost more than they may. A `task`
    tells by its first message that it is ready; then, and as long as it has had no notification, it does not know its
    partition, and says -1. `stopped` is said by its last message, when it was asked to stop. `pid` is its process.
    Everything before `taken` is matched; `matched` are subscription and topic, where there is a deadline, and when the
    last such notification was accepted.

    A worker on another host says from time to time that it is `alive`, and nothing else then.
    """

    run: int
    partition: int
    position: int
    since: int
    clean: bool = False
    notifications: int = 0
    deliveries: int = 0
    signs: tuple[tuple[str, Sign], ...] = ()
    gone: frozenset[str] = frozenset()
    costly: frozenset[str] = frozenset()
    task: int = 0
    stopped: bool = False
    pid: int = 0
    taken: int = -1
    matched: tuple[tuple[str, str, int], ...] = ()
    thinned: int = 0
    alive: bool = False

    def is_newer_than(self, known: WorkerProgress | None) -> bool:
        """Whether it says more of its partition. A worker that was cut off may come behind the one that took its place;
        one that knows no partition, or has had nothing of it, says nothing."""
        if self.partition < 0 or self.position < 0:
            return False
        return known is None or (self.run, self.position) >= (known.run, known.position)


class _FeedValue(Versioned, frozen=True):
    feed: WorkerUpdate


class _ProgressValue(Versioned, frozen=True):
    progress: WorkerProgress


_feed = VersionedCodec(_FeedValue, "a message to the workers", VERSION)
_progress = VersionedCodec(_ProgressValue, "the progress of a worker", VERSION)
_encoder = msgspec.msgpack.Encoder()


def encode_feed(feed: WorkerUpdate) -> tuple[bytes, bytes]:
    return b"%d" % feed.run, _feed.encode(_FeedValue(VERSION, feed))


def decode_feed(key: bytes, value: bytes | None) -> WorkerUpdate:
    """The message behind a Kafka value; raises as `VersionedCodec.decode`."""
    return _feed.decode(value, key).feed


def encode_feeds(messages: Iterable[WorkerUpdate], most: int) -> Iterator[tuple[bytes, bytes]]:
    """Kafka keys and values of messages that are written together, with their numbers of records `back`. A value of
    more than `most` bytes is cut into pieces."""
    back = 0
    for message in messages:
        key, value = encode_feed(msgspec.structs.replace(message, back=back))
        if len(value) <= most:
            yield key, value
            back += 1
            continue
        for first in range(0, len(value), most):
            piece, left = value[first : first + most], (len(value) - first - 1) // most
            yield encode_feed(
                WorkerUpdate(message.run, message.began, back, message.control, complete=False, piece=piece, left=left)
            )
            back += 1


class FeedPieces:
    """Joins the pieces of large messages."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def whole(self, feed: WorkerUpdate) -> WorkerUpdate | None:
        """The message that this record completes; None for a piece with others behind it."""
        if not feed.piece:
            self._pieces.clear()  # of an append that failed: a snapshot follows
            return feed
        self._pieces.append(feed.piece)
        if feed.left:
            return None
        value = b"".join(self._pieces)
        self._pieces.clear()
        return decode_feed(b"%d" % feed.run, value)


def encode_progress(progress: WorkerProgress) -> tuple[bytes, bytes]:
    return b"%d" % progress.partition, _progress.encode(_ProgressValue(VERSION, progress))


def progress_in_records(progress: WorkerProgress) -> Iterator[WorkerProgress]:
    """The same in several messages, each no larger than a record. The last one has the position, so a reader that has
    it has the lists of the others, too."""
    kept: dict[str, list[object]] = {"signs": [], "gone": [], "costly": [], "matched": []}

    def part() -> WorkerProgress:
        return msgspec.structs.replace(
            progress,
            signs=tuple(kept["signs"]),
            gone=frozenset(kept["gone"]),
            costly=frozenset(kept["costly"]),
            matched=tuple(kept["matched"]),
        )

    size = 0
    for field, found in kept.items():
        for each in getattr(progress, field):
            length = len(_encoder.encode(each))
            if size and size + length > _MOST_BYTES:
                yield msgspec.structs.replace(
                    part(), partition=-1, position=-1, notifications=0, deliveries=0, thinned=0, stopped=False
                )
                size = 0
                for full in kept.values():
                    full.clear()
            found.append(each)
            size += length
    yield part()


def decode_progress(key: bytes, value: bytes | None) -> WorkerProgress:
    """The message behind a Kafka value; raises as `VersionedCodec.decode`."""
    return _progress.decode(value, key).progress


def read_progress(kafka: KafkaSettings) -> dict[int, WorkerProgress]:
    """The last message of each partition; nothing where there is no such log. Raises InfrastructureError."""
    found: dict[int, WorkerProgress] = {}
    with LogScan(kafka, PROGRESS_LOG) as log:
        try:
            log.partitions()
        except InfrastructureError:
            return found  # of an engine that was never in that gear
        for record in log.read_all():
            progress = decode_progress(record.key or b"", record.value)
            if progress.is_newer_than(found.get(progress.partition)):
                found[progress.partition] = progress
    return found


class ProgressLog:
    """A worker's side of the log: nothing waits for it. Used by one thread."""

    def __init__(self, kafka: KafkaSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._writer = DurableWriter(kafka, PROGRESS_LOG)
        self._clock = clock
        self._sent: deque[tuple[int, float]] = deque()

    def tell(self, progress: WorkerProgress) -> None:
        for each in progress_in_records(progress):
            key, value = encode_progress(each)
            self._sent.append((self._writer.send(0, value, key), self._clock()))

    def is_late(self) -> bool:
        """Whether Kafka is late with an acknowledgement: then the log has to be settled."""
        while self._sent and self._writer.has(self._sent[0][0]):
            self._sent.popleft()
        return bool(self._sent) and self._clock() - self._sent[0][1] > _LATE_S

    def settle(self, timeout_s: float) -> None:
        """Return when everything sent is in the log. Raises InfrastructureError."""
        self._writer.settle(timeout_s)

    def close(self) -> None:
        self._writer.close()


class UpdateReader:
    """A worker's side of the log `feed`: a thread that reads the updates of a run from its last base on."""

    def __init__(self, kafka: KafkaSettings, run: int, wake: Callable[[], None]) -> None:
        self._kafka = kafka
        self._log = LogConsumer(kafka, FEED_LOG, wait_ms=_WAIT_MS)
        self._run = run
        self._wake = wake
        self._pieces = FeedPieces()
        self.parked: Mapping[int, int] = {}
        """Where the log of parked deliveries ended when this began; known before the first update."""
        self.messages: deque[WorkerUpdate] = deque()
        self.error: BaseException | None = None
        self.read_to = -1
        """Behind the last record that was read, and not of a later run; -1 before the first."""
        self._begun = False
        self._service = Service("feed", self._step, close=self._log.close)

    def start(self) -> None:
        self._service.start()

    def close(self) -> None:
        self._service.stop(2 * _READ_S)

    def _step(self) -> float | None:
        try:
            if not self.parked:
                with closing(LogConsumer(roomy(self._kafka), "parked")) as parked:
                    self.parked = parked.ends()
                (end,) = self._log.ends().values()
                self._log.seek({0: max(0, end - 1)})
            for record in self._log.poll(_READ_S).get(0, ()):
                update = decode_feed(record.key or b"", record.value)
                if not self._begun:
                    # The last update names the first that counts.
                    self._begun = True
                    self._log.seek({0: record.offset - update.back if update.began < 0 else update.began})
                    break
                self._take(update)
                self.read_to = record.offset + 1
        except BaseException as error:
            self.error = error
        if self.messages or self.error is not None:
            self._wake()
        return None if self.error is not None else 0.0

    def _take(self, feed: WorkerUpdate) -> None:
        if feed.run > self._run:
            raise InfrastructureError("another run of the query has begun: this task is of an earlier one")
        if feed.run == self._run and (whole := self._pieces.whole(feed)) is not None:
            self.messages.append(whole)
