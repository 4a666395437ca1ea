"""The driver's side of the real-time mode: updates to the workers, and their progress."""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing

import msgspec

from arborcast.core.backoff import Backoff
from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.consumer import LogConsumer
from arborcast.core.eventlog.follower import LogFollower
from arborcast.core.eventlog.topics import FEED_LOG, PROGRESS_LOG
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.settings import KafkaSettings
from arborcast.core.threads import Service
from arborcast.dispatch.hot.intake import Exclusions
from arborcast.dispatch.matching.bases import SharedBase
from arborcast.dispatch.matching.view import Advance, RoutingView
from arborcast.dispatch.realtime.messages import (
    ExclusionChange,
    WorkerProgress,
    WorkerUpdate,
    encode_feeds,
    readable_progress,
)
from arborcast.dispatch.realtime.workers import LocalWorkers, RemoteWorkers
from arborcast.dispatch.redelivery.partition_reports import PartitionReport
from arborcast.topic_model.routing import ViewStep

# Bytes of the names in one message about lanes and endpoints.
_NAMES_AT_ONCE = 256 * 1024

# Bytes of a record, and of the records that wait for Kafka at a time.
_MOST_BYTES = 1024 * 1024
_PENDING_BYTES = 8 * 1024 * 1024

# The broker answers a fetch request when there is data, or after this time.
_WAIT_MS = 2_000

_POLL_S = 0.5

# Interval of writes of changes that are not in the control log (free lanes, degraded endpoints); and without changes.
_WRITE_S = 0.1
_IDLE_S = 0.5

# Each message costs every worker the better part of a millisecond. So after a burst of ten, changes are sent together.
_PACE_S = 0.025
_BURST_S = 0.25

# A snapshot is written after this number of steps, or this time: a worker that starts later reads the log from the last
# one. Running workers do not push until they have read it, so it waits until it is short (a new base, few changes of
# the past), and until the differences are as large as the last one: a megabyte with 10,000 degraded endpoints.
_STEPS = 1_000
_SNAPSHOT_S = 600.0
_SHORT_PAST = 5_000

# The limit of that wait: with thousands of changes a second the past is never short.
_MOST_STEPS = 3 * _STEPS

_BACKOFF = Backoff(1.0, 1.0)


def exclusion_changes(before: Exclusions, now: Exclusions) -> Iterator[ExclusionChange]:
    """The messages that turn `before` into `now`. Holds are sent before releases."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    size = 0
    for field, old, new, opposite in (
        ("held", before.held, now.held, "freed"),
        ("degraded", before.degraded, now.degraded, "recovered"),
        ("watched", before.watched, now.watched, "unwatched"),
        ("unjudged", before.unjudged, now.unjudged, "judged"),
        ("on_trial", before.on_trial, now.on_trial, "off_trial"),
        ("erased", before.erased, now.erased, "erasure_done"),
    ):
        if new is old:
            continue
        for kind, different in ((field, new - old), (opposite, old - new)):
            for name in different:
                if size >= _NAMES_AT_ONCE:
                    yield _change_of(names, {})
                    names.clear()
                    size = 0
                names[kind].append(name)
                size += len(name)
    if names or now.read != before.read:
        # The offsets are in the last message: they are valid after all changes.
        yield _change_of(names, now.read)


def _change_of(names: Mapping[str, list[str]], read: Mapping[int, int]) -> ExclusionChange:
    sets = {kind: frozenset(each) for kind, each in names.items()}
    return msgspec.structs.replace(ExclusionChange(read=dict(read)), **sets)


class _Feed:
    """The writer of the log `feed` for one run. Used under the lock of `WorkerUpdates`."""

    def __init__(self, kafka: KafkaSettings) -> None:
        # Kafka adds a key and some bytes to a record.
        self._most_bytes = min(_MOST_BYTES, kafka.max_record_bytes // 2)
        self._log = LogWriter(kafka, FEED_LOG)
        self._pending: Callable[[], int] | None = None
        self.began = -1
        """The offset of the last base."""
        self.steps = 0
        """Messages since the last base."""
        self._bytes = 0  # of these messages
        self._snapshot_bytes = 0
        self._began_at = 0.0

    def write(self, messages: list[WorkerUpdate], begins: bool) -> None:
        """Append messages in order; `begins`: with a base. Each append waits for the previous one, since a missing step
        would make a wrong view."""
        if begins:
            self._bytes = 0
        records = self._write(messages)
        if begins:
            self.began = self.settle() - records + 1
            self.steps, self._snapshot_bytes, self._began_at = 0, self._bytes, time.monotonic()
        self.steps += len(messages)

    def is_old(self) -> bool:
        """Whether the log since the last snapshot is long for a starting worker."""
        if time.monotonic() - self._began_at > _SNAPSHOT_S:
            return True
        return self.steps > _STEPS and self._bytes >= 2 * self._snapshot_bytes

    def settle(self) -> int:
        """Wait for the last append; returns the offset of its last record, -1 without one."""
        pending, self._pending = self._pending, None
        return -1 if pending is None else pending()

    def close(self) -> None:
        self._log.close()

    def _write(self, messages: list[WorkerUpdate]) -> int:
        """Returns the number of records."""
        count = size = 0
        records: list[tuple[bytes, bytes | None]] = []
        for key, value in encode_feeds(messages, self._most_bytes):
            if records and size + len(value) > _PENDING_BYTES:
                self._append(records)
                records, size = [], 0
            records.append((key, value))
            count, size = count + 1, size + len(value)
            self._bytes += len(value)
        self._append(records)
        return count

    def _append(self, records: list[tuple[bytes, bytes | None]]) -> None:
        self.settle()
        self._pending = self._log.begin(records)


class WorkerUpdates:
    """The updates to the workers of one run. `exclusions` returns the current ones."""

    def __init__(
        self,
        kafka: KafkaSettings,
        view: RoutingView,
        exclusions: Callable[[], Exclusions],
        run: int,
        one_base: bool = False,
    ) -> None:
        """`one_base`: a running task cannot change the base with which it was started."""
        self._kafka = kafka
        self._one_base = one_base
        self.base: SharedBase | None = None
        """The base of the last snapshot."""
        self.outdated = False
        """Whether a new run must begin, with a newer base."""
        self._view = view
        self._exclusions = exclusions
        self._run = run
        self._feed = _Feed(kafka)
        self._control_log = LogConsumer(kafka, "control", wait_ms=_WAIT_MS)
        self._written = Exclusions()
        self._control = -1
        self._snapshot_due = True
        self._lock = threading.Lock()
        self._paced = 0.0
        self._service = Service(
            "feed-workers", self._step, backoff=_BACKOFF, close=self._close, what="the updates to the workers"
        )

    def start(self) -> None:
        """Write the state, then changes. Raises InfrastructureError, RecordVersionError."""
        self._write()
        self._service.start()

    def request_stop(self) -> None:
        """Request all workers to stop. Raises InfrastructureError."""
        with self._lock:
            stop = WorkerUpdate(self._run, self._feed.began, 0, self._control, complete=False, stop=True)
            self._feed.write([stop], begins=False)
            self._feed.settle()

    def stop(self) -> None:
        """Write no more updates."""
        if self._service.stop(2 * _POLL_S):
            self._close()
        self._view.end_steps()

    def _close(self) -> None:
        self._control_log.close()
        self._feed.close()

    def _step(self) -> float:
        try:
            return self._follow()
        except Exception:
            self._snapshot_due = True
            self._control_log.close()
            raise

    def _follow(self) -> float:
        if not self._control_log.placed:
            self._control_log.seek({0: min(self._control_log.end(), max(self._control, 0))})
        calm = not (self._written.held or self._written.degraded or self._written.watched)
        records = self._control_log.poll(_IDLE_S if calm else _WRITE_S).get(0)
        if records:
            self._write(records[-1].offset + 1)
            now = time.monotonic()
            self._paced = max(self._paced, now - _BURST_S) + _PACE_S
            return max(0.0, self._paced - now)
        with self._lock:
            self._feed.settle()
        if self._snapshot_due or self._exclusions() != self._written or self._feed.is_old():
            self._write()
        return 0.0

    def _write(self, end: int | None = None) -> None:
        """Write the changes. `end` is the current end of the control log."""
        with self._lock:
            if self.outdated:
                return
            most = sys.maxsize if self._feed.steps > _MOST_STEPS else _SHORT_PAST
            snapshot = self._snapshot_due or (self._feed.is_old() and self._view.is_short(most))
            self._snapshot_due = True
            advance = self._view.advance(
                self._kafka.request_timeout_s, snapshot, end, stopped=lambda: self._service.stopping
            )
            if advance.base is not None:
                self.outdated = self._one_base and self.base is not None and advance.base != self.base
                if self.outdated:
                    return
                self.base = advance.base
            exclusions = self._exclusions()
            messages = self._messages(advance, exclusions)
            if messages:
                self._feed.write(messages, begins=advance.base is not None)
            self._written, self._control, self._snapshot_due = exclusions, advance.control, False

    def _messages(self, advance: Advance, exclusions: Exclusions) -> list[WorkerUpdate]:
        run, control = self._run, advance.control
        before = self._written if advance.base is None else Exclusions()
        changes = list(exclusion_changes(before, exclusions))
        if advance.base is None and not (advance.steps or changes) and control == self._control:
            return []
        found: list[tuple[bytes, ViewStep | None, ExclusionChange | None]]
        found = [(b"", None, each) for each in changes] + [(b"", each, None) for each in advance.steps]
        if advance.base is not None:
            found.insert(0, (advance.base.name, None, None))
        if not found:
            found.append((b"", None, None))  # the position only
        began, last = (-1 if advance.base is not None else self._feed.began), len(found) - 1
        return [
            WorkerUpdate(run, began, number, control, base, step, change, complete=number == last)
            for number, (base, step, change) in enumerate(found)
        ]


class ProgressListener:
    """Reads the progress of the workers, of all runs. `report` is called with the reports of the newest run."""

    def __init__(
        self, kafka: KafkaSettings, report: Callable[[PartitionReport], None], workers: LocalWorkers | RemoteWorkers
    ) -> None:
        self._kafka = kafka
        self._report = report
        self._workers = workers
        self._follower = LogFollower(
            kafka, PROGRESS_LOG, lambda *record: record, self._read, wait_ms=_WAIT_MS, forgetful=True
        )
        self._changed = threading.Condition()
        self._run = self._newest = -1
        self._tasks = sys.maxsize  # of the newest run
        self._ready: set[int] = set()
        self._stopped: set[int] = set()
        self.reported_at = 0.0
        """The time of the last report, by the monotonic clock."""
        self.known: Mapping[int, WorkerProgress] = {}
        """The last readable message of each partition; replaced as a whole, since other threads iterate over it."""
        self.damaged = False
        """Whether a record was damaged: a run or a position may be missing in `known`."""
        self._service = Service(
            "worker-progress", self._step, backoff=_BACKOFF, close=self._follower.close, what="the log of the progress"
        )

    def read(self) -> None:
        """Read the log to its end, before `start`. Raises InfrastructureError, RecordVersionError."""
        self._follower.read_to_end(self._kafka.request_timeout_s * 3)

    def start(self) -> None:
        self._service.start()

    def stop(self) -> None:
        if self._service.stop(2 * _POLL_S):
            self._follower.close()

    def begin(self, run: int, tasks: int) -> None:
        with self._changed:
            self._workers.begin(tasks)
            self._run = self._newest = run
            self._tasks = tasks
            self._ready.clear()
            self._stopped.clear()

    def end_workers(self) -> None:
        """Begin to end the workers of all runs; see `LocalWorkers.wait_ended`. Raises InfrastructureError."""
        with self._changed:
            self._run = -1
        self._workers.end(max([self._newest, *(each.run for each in self.known.values())]))

    def catch_up(self, timeout_s: float) -> None:
        """Wait until the log is read to its current end. Raises InfrastructureError."""
        with closing(LogConsumer(self._kafka, PROGRESS_LOG)) as log:
            end = log.end(timeout_s)
        deadline = time.monotonic() + timeout_s
        while self._follower.position < end:
            if time.monotonic() > deadline:
                raise InfrastructureError(f"the {PROGRESS_LOG} log could not be read within {timeout_s:g} s")
            time.sleep(0.005)

    def missing(self) -> str:
        with self._changed:
            return self._workers.missing()

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until all tasks of the newest run are ready; returns whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._ready) >= self._tasks, timeout_s)

    def wait_stopped(self, timeout_s: float) -> bool:
        """Wait until all tasks of the newest run have stopped; returns whether they have."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._stopped) >= self._tasks, timeout_s)

    @property
    def settled(self) -> bool:
        """Whether the tasks that have stopped have left no deliveries to the next run."""
        return all(each.position >= each.taken for each in self.known.values())

    def _step(self) -> float:
        self._follower.poll(_POLL_S)
        return 0.0

    def _read(self, record: tuple[bytes, bytes | None], offset: int) -> None:
        progress = readable_progress(*record, offset)
        if progress is None:
            # Pushes may have been started behind the known positions: a start reads their rows.
            self.damaged = True
            self.known = {number: msgspec.structs.replace(each, clean=False) for number, each in self.known.items()}
        else:
            self._apply(progress)

    def _apply(self, progress: WorkerProgress) -> None:
        self.reported_at = time.monotonic()
        of_task = progress.task >= 0  # otherwise of the driver
        # Also reports of ended workers of the newest run: its positions count, so its matches count, too.
        if of_task and progress.run == self._newest and _has_report(progress):
            self._report(
                PartitionReport(
                    signs=list(progress.signs),
                    gone=set(progress.gone),
                    costly=set(progress.costly),
                    notifications=progress.notifications,
                    deliveries=progress.deliveries,
                    thinned=progress.thinned,
                    new_letters=progress.new_letters,
                    matched={(subscription, topic): at_ms for subscription, topic, at_ms in progress.matched},
                )
            )
        # After the report of matches, before a thread that waits for the task continues.
        if progress.is_newer_than(self.known.get(progress.partition)):
            self.known = {**self.known, progress.partition: progress}
        if of_task and progress.run == self._run:
            with self._changed:
                self._workers.reported(progress)
                if not progress.alive:
                    self._ready.add(progress.task)
                if progress.stopped:
                    self._stopped.add(progress.task)
                self._changed.notify_all()


def _has_report(progress: WorkerProgress) -> bool:
    found = progress.signs, progress.gone, progress.costly, progress.notifications, progress.matched
    return any(found) or progress.new_letters.number > 0
