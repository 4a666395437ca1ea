"""Messages between the driver and the workers of real time, in two logs of one partition each.

log        key             value
feed       the run         WorkerUpdate     driver to workers: subscriptions, exclusions; in order
progress   the partition   WorkerProgress   worker to driver: settled positions, endpoint health

Records of `feed` are obsolete after their run. The last message of each partition in `progress` is the position after a
crash: everything before it is settled, and rows behind it are in `attempts`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing

import msgspec

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.consumer import LogConsumer
from arborcast.core.eventlog.damaged import unless_damaged
from arborcast.core.eventlog.scan import LogScan
from arborcast.core.eventlog.topics import FEED_LOG, PROGRESS_LOG
from arborcast.core.eventlog.writers import DurableWriter
from arborcast.core.settings import KafkaSettings
from arborcast.core.threads import Service
from arborcast.core.versions import RecordCodec
from arborcast.dispatch.delivery.health import Sign
from arborcast.dispatch.logs.parked import with_parked_overhead
from arborcast.dispatch.redelivery.events import NO_LETTERS, NewLetters
from arborcast.topic_model.routing import ViewStep

VERSION = 1
"""The version of the records of both logs."""

# Bytes of the lists in a worker's message: half of the smallest kafka.max_record_bytes.
_MOST_BYTES = 32 * 1024

_LATE_S = 5.0

# Longest wait of a fetch for new records.
_WAIT_MS = 2_000

# The time of one poll; a stop is noticed after it.
_READ_S = 1.0


class ExclusionChange(msgspec.Struct, frozen=True, array_like=True):
    """Differences in the exclusions: newly held and freed lanes, with the `parked` log read to these offsets;
    endpoints, subscriptions and scopes of erasures that are added to or removed from `Exclusions`."""

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
    erased: frozenset[str] = frozenset()
    erasure_done: frozenset[str] = frozenset()


class WorkerUpdate(msgspec.Struct, frozen=True, array_like=True):
    """An update for the workers of a run.

    An update with a `base`, the file of a snapshot, replaces all earlier ones; workers push again after one that is
    `complete`. On a cluster, where workers cannot open the driver's files, it is the base with which their tasks were
    started. `control` is the driver's position in the control log. A worker that starts later begins with the last
    message with a base: at the offset `began` or, if this is -1 because both were written together, `back` records
    earlier. `stop` requests the workers to take no more notifications and to settle the others. A message larger than a
    record is cut into several, each with a `piece` of its bytes and the number of pieces `left`.
    """

    run: int
    began: int
    back: int
    control: int
    base: bytes = b""
    step: ViewStep | None = None
    exclusions: ExclusionChange | None = None
    complete: bool = True
    stop: bool = False
    piece: bytes = b""
    left: int = 0


class WorkerProgress(msgspec.Struct, frozen=True, array_like=True):
    """The progress in a partition of the `notifications` log.

    Everything before `position` is settled, in the Kafka topic with the id `topic`; `clean`: no push was started behind
    it. Otherwise `since` is the first run whose rows count. Since the previous message, `notifications` were matched
    with `deliveries`, without those `thinned` by a minimum interval; `signs` are observations of endpoints, the
    receivers of `gone` answered 410, and the conditions of `costly` exceeded their budget. The first message of a
    `task` reports that it is ready; its partition is -1 before its first notification. `stopped` is in the last message
    after a stop. `pid` is its process. Everything before `taken` is matched; `matched` has the newest acceptance per
    subscription and topic with a deadline, `new_letters` the new dead letters. A worker on another host sends
    heartbeats with `alive` only.
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
    new_letters: NewLetters = NO_LETTERS
    topic: str = ""

    def is_newer_than(self, known: WorkerProgress | None) -> bool:
        """Whether it is newer for its partition. A late message of a replaced worker may follow one of its successor; a
        message without a partition has no position."""
        if self.partition < 0 or self.position < 0:
            return False
        return known is None or (self.run, self.position) >= (known.run, known.position)


_feed = RecordCodec[WorkerUpdate](WorkerUpdate, "a message to the workers", VERSION, name="feed")
_progress = RecordCodec[WorkerProgress](WorkerProgress, "the progress of a worker", VERSION, name="progress")
_encoder = msgspec.msgpack.Encoder()


def encode_feed(feed: WorkerUpdate) -> tuple[bytes, bytes]:
    return b"%d" % feed.run, _feed.encode(feed)


def decode_feed(key: bytes, value: bytes | None) -> WorkerUpdate:
    """The message in a Kafka value; raises as `VersionedCodec.decode`."""
    return _feed.decode(value, key)


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
        """The message completed by this record; None if more pieces follow."""
        if not feed.piece:
            self._pieces.clear()  # of a failed append: a snapshot follows
            return feed
        self._pieces.append(feed.piece)
        if feed.left:
            return None
        value = b"".join(self._pieces)
        self._pieces.clear()
        return decode_feed(b"%d" % feed.run, value)


def encode_progress(progress: WorkerProgress) -> tuple[bytes, bytes]:
    return b"%d" % progress.partition, _progress.encode(progress)


def progress_in_records(progress: WorkerProgress) -> Iterator[WorkerProgress]:
    """A report as several messages, each no larger than a record. The last one has the position, so its reader has the
    lists of the others, too."""
    lists: dict[str, list[object]] = {"signs": [], "gone": [], "costly": [], "matched": []}

    def part(**changed: object) -> WorkerProgress:
        made = {field: type(getattr(progress, field))(found) for field, found in lists.items()}
        return msgspec.structs.replace(progress, **made, **changed)

    later = {"notifications": 0, "deliveries": 0, "thinned": 0, "stopped": False, "new_letters": NO_LETTERS}
    size = 0
    for field, found in lists.items():
        for each in getattr(progress, field):
            length = len(_encoder.encode(each))
            if size and size + length > _MOST_BYTES:
                yield part(partition=-1, position=-1, **later)
                size = 0
                for full in lists.values():
                    full.clear()
            found.append(each)
            size += length
    yield part()


def decode_progress(key: bytes, value: bytes | None) -> WorkerProgress:
    """The message in a Kafka value; raises as `VersionedCodec.decode`."""
    return _progress.decode(value, key)


def readable_progress(key: bytes, value: bytes | None, offset: int) -> WorkerProgress | None:
    """The message in a record of `progress`; None if it is damaged: it may have had any position. Raises
    RecordVersionError."""
    return unless_damaged(PROGRESS_LOG, offset, decode_progress, key, value)


def read_progress(kafka: KafkaSettings) -> dict[int, WorkerProgress]:
    """The last readable message of each partition; empty without the log. Raises InfrastructureError."""
    found: dict[int, WorkerProgress] = {}
    with LogScan(kafka, PROGRESS_LOG) as log:
        try:
            log.partitions()
        except InfrastructureError:
            return found  # an engine that has never used real time
        for record in log.read_all():
            progress = readable_progress(record.key, record.value, record.offset)
            if progress is not None and progress.is_newer_than(found.get(progress.partition)):
                found[progress.partition] = progress
    return found


class ProgressLog(DurableWriter):
    """The writer of the log `progress`. Used by one thread."""

    def __init__(self, kafka: KafkaSettings) -> None:
        super().__init__(kafka, PROGRESS_LOG)

    def write(self, progress: WorkerProgress) -> None:
        """Write progress without waiting."""
        for each in progress_in_records(progress):
            key, value = encode_progress(each)
            self.send(0, value, key)

    def is_late(self) -> bool:
        """Whether an acknowledgement of Kafka is late: then `settle` must be called."""
        return self.is_behind(_LATE_S)


class UpdateReader:
    """A worker's reader of the log `feed`: a thread that reads the updates of a run from its last base on."""

    def __init__(self, kafka: KafkaSettings, run: int, wake: Callable[[], None]) -> None:
        self._kafka = kafka
        self._log = LogConsumer(kafka, FEED_LOG, wait_ms=_WAIT_MS)
        self._run = run
        self._wake = wake
        self._pieces = FeedPieces()
        self.parked: Mapping[int, int] = {}
        """The end of the log of parked deliveries when this began; set before the first update."""
        self.messages: deque[WorkerUpdate] = deque()
        self.error: BaseException | None = None
        self.read_to = -1
        """The offset behind the last record read that is not of a later run; -1 before the first."""
        self._begun = False
        self._service = Service("feed", self._step, close=self._log.close)

    def start(self) -> None:
        self._service.start()

    def close(self) -> None:
        self._service.stop(2 * _READ_S)

    def _step(self) -> float | None:
        try:
            if not self.parked:
                with closing(LogConsumer(with_parked_overhead(self._kafka), "parked")) as parked:
                    self.parked = parked.ends()
                self._log.seek({0: max(0, self._log.end() - 1)})
            for record in self._log.poll(_READ_S).get(0, ()):
                update = decode_feed(record.key or b"", record.value)
                if not self._begun:
                    # The last update has the offset of the first one to read.
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
            raise InfrastructureError("another run of the query has begun: this task belongs to an earlier one")
        if feed.run == self._run and (whole := self._pieces.whole(feed)) is not None:
            self.messages.append(whole)
