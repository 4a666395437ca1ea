"""One session of the redelivery, from a start to the next failure: all connections and open files.

Its state is a fold over the `parked` log, stored in a file. After a failure the changes since the last commit are
dropped, and the next session begins from there; a push with an unwritten outcome is repeated.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from arborcast.core import liveness
from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import ConsumerRecord
from arborcast.core.eventlog.consumer import Discontinued, LogConsumer
from arborcast.core.eventlog.damaged import unless_damaged
from arborcast.core.eventlog.follower import LogCursor
from arborcast.core.eventlog.topics import CONTROL_HISTORY_MS, RESULTS_LOG
from arborcast.core.progress import LoggedProgress
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import is_due, time_ms
from arborcast.dispatch.delivery.transport.contract import Transport
from arborcast.dispatch.logs.attempts import partition_of_subscription
from arborcast.dispatch.logs.parked import with_parked_overhead
from arborcast.dispatch.redelivery.endpoints import HealthMemory
from arborcast.dispatch.redelivery.parked_store import ParkedStore, UnusableFile
from arborcast.dispatch.redelivery.pushes import RedeliveryJournal, journal_for
from arborcast.dispatch.redelivery.scheduler import Redelivery, RedeliveryContext, RedeliveryStatistics
from arborcast.topic_model.records.results import decode as decode_result

logger = logging.getLogger(__name__)

# Longest wait of a fetch for new records.
_WAIT_MS = 2_000

# Records folded before pushes are served.
_AT_ONCE = 500

# Longest sleep without work: it delays a stop and the effect of a resume. Also while a result is awaited.
IDLE_S = 0.25
_RESULT_S = 0.05

# The name of the position in the log of results.
_RESULTS = "results"

# Poll interval for newly parked deliveries, and for the control log, with pushes in flight.
_POLL_S = 0.02
_CONTROL_S = 0.2

# Interval of writes of outcomes under load; a crash repeats the pushes of this period.
_COMMIT_S = 0.1

# The first fold of a large log is committed in pieces of this number of records, or bytes of messages.
_FOLD_RECORDS = 20_000
_FOLD_BYTES = 32 * 1024 * 1024

# The name of the time when the file was up to date. The file is valid for half the retention of null values.
_READ_MS = "read-ms"
_VALID_MS = CONTROL_HISTORY_MS // 2

# With thousands of queues the figures take longer than the pushes: they get one part in this number of the time.
_FIGURES_SHARE = 20

# Interval at which an idle file records that it is up to date.
_REFRESH_S = 600.0

# Interval of writes of the health of degraded endpoints: some megabytes with ten thousand. A suspension and an orderly
# end do not wait for it.
_HEALTH_S = 60.0


@dataclass(frozen=True)
class SessionParts:
    """The parts that all sessions share."""

    kafka: KafkaSettings
    file: Path
    context: RedeliveryContext
    make_transport: Callable[[], Transport]
    end_subscriptions: Callable[[Iterable[str]], object]
    suspend_subscriptions: Callable[[Mapping[str, int]], None]


@contextmanager
def opened_session(parts: SessionParts) -> Iterator[RedeliverySession]:
    """A session with its connections and files, which are closed at the end."""
    with (
        closing(_opened(parts.file, _identity(parts.kafka))) as store,
        closing(_cursor(parts.kafka, "parked", store.positions())) as parked,
        # The log has one partition.
        closing(_cursor(parts.kafka, RESULTS_LOG, {0: int(store.recall(_RESULTS) or 0)})) as results,
        closing(journal_for(parts.kafka, store.is_displaced)) as journal,
        closing(parts.make_transport()) as transport,
    ):
        yield RedeliverySession(parts, store, parked, results, journal, transport)


def _identity(kafka: KafkaSettings) -> str:
    """The topic, its id and the number of its partitions."""
    with closing(LogConsumer(kafka, "parked")) as log:
        return f"{log.topic} {log.topic_id()} {len(log.partitions())}"


def _cursor(kafka: KafkaSettings, log: str, positions: Mapping[int, int]) -> LogCursor:
    return LogCursor(with_parked_overhead(kafka), log, positions, wait_ms=_WAIT_MS, max_records=_AT_ONCE)


class RedeliverySession:
    """Used by one thread, within `opened_session`."""

    def __init__(
        self,
        parts: SessionParts,
        store: ParkedStore,
        parked: LogCursor,
        results: LogCursor,
        journal: RedeliveryJournal,
        transport: Transport,
    ) -> None:
        self._parts = parts
        self._store = store
        self._parked = parked
        self._results = results
        self._memory = HealthMemory(store, parts.context.health)
        self._journal = journal
        self._moved = False
        self.figures = RedeliveryStatistics()
        """The figures of this session."""
        self._count_at = self._polled_at = self._control_read_at = time.monotonic()
        self._committed = self._health_saved_at = self._refreshed_at = self._count_at
        self.redelivery = Redelivery(parts.context, store, transport, journal, time_ms, random.random)

    def begin(self, stopped: Callable[[], bool], restore: bool) -> None:
        """Fold the log to its end, and read the current subscriptions. `restore`: in the first session of the process,
        take over the health written by an earlier process; its workers have ended. Raises InfrastructureError."""
        parts = self._parts
        try:
            self._parked.ends()
            self._results.ends()
        except Discontinued as error:
            self._discard_file(error)
        health, held = parts.context.health, parts.context.held
        held.begin_session()
        health.forget_probes()
        for lane in self._store.lanes():
            self.redelivery.found(lane)
        for partition, position in self._parked.positions.items():
            held.applied(partition, position)
        self.read_to_end(stopped)
        held.caught_up()
        self.redelivery.caught_up()
        parts.context.subscriptions.catch_up(parts.kafka.request_timeout_s)
        parts.end_subscriptions(())  # those of a failed session
        if restore:
            self.redelivery.workers_ended()  # of another process
            # After the subscriptions: health is restored only for their endpoints.
            self._memory.restore()
        else:
            self.redelivery.kafka_was_unavailable(parts.kafka.request_timeout_s)
        self.redelivery.continue_failing()
        if self._store.count:
            logger.info("%d deliveries are parked in %d lanes", self._store.count, self.redelivery.lanes)

    def read_to_end(self, stopped: Callable[[], bool]) -> None:
        """Fold the log to its end. Raises InfrastructureError."""
        if self._journal.dirty:
            self._write()  # the commits below must not be ahead of the logs
        ends, results = self._parked.ends(), self._results.ends()
        self._store.partitions = self._store.partitions or len(ends)
        unfolded, folded, progress = 0, 0, LoggedProgress(logger)
        while not stopped() and not (self._parked.has_reached(ends) and self._results.has_reached(results)):
            liveness.beat()
            count = self._follow(IDLE_S)
            unfolded, folded = unfolded + count, folded + count
            progress("reading the parked log", folded, folded + self._parked.unread())
            if unfolded >= _FOLD_RECORDS or self._store.uncommitted >= _FOLD_BYTES:
                self._commit()
                unfolded = 0
        self._commit()
        self._count()

    def run(self, stopped: Callable[[], bool], interrupted: Callable[[], bool]) -> None:
        """Work until `stopped` or `interrupted` returns True; outcomes may then be pending. Raises
        InfrastructureError if it cannot continue."""
        more = False
        while not (stopped() or interrupted()):
            liveness.beat()
            if self.redelivery.lanes and time.monotonic() - self._control_read_at > _CONTROL_S:
                self._read_control()
            self.redelivery.work()
            if self.redelivery.in_flight:
                self.redelivery.drive(0.0 if more else _POLL_S)
                # Further records, which may be urgent, follow at once.
                if more or time.monotonic() - self._polled_at > _POLL_S:
                    more = self._follow(0.0) > 0 and self._parked.unread() > 0
            else:
                self._write()
                self._follow(self._idle_s())
            if time.monotonic() - self._committed > _COMMIT_S:
                self._write()

    def end(self, until: float) -> None:
        """Begin nothing more, and write the outcomes of pushes in flight until this time of the monotonic clock. The
        next start repeats a push without an outcome. Raises InfrastructureError."""
        # First the outcomes so far: the time may not be enough for more.
        self._write()
        while self.redelivery.in_flight and (left_s := until - time.monotonic()) > 0:
            liveness.beat()
            self.redelivery.drive(min(left_s, _COMMIT_S))
            self._write()
        self._save_health()
        self._commit()
        self._count()

    def _follow(self, timeout_s: float) -> int:
        """Apply the records that arrive within this time; returns their number."""
        try:
            # Separate frames: kafka-python keeps the frame that polls, and its callers, for a while.
            count = self._follow_parked(timeout_s)
            count += self._follow_results()
        except Discontinued as error:
            self._discard_file(error)
        self._polled_at = time.monotonic()
        return count

    def _follow_parked(self, timeout_s: float) -> int:
        count = 0
        for partition, records in self._parked.poll(timeout_s).items():
            if partition >= self._store.partitions:
                self.end(time.monotonic() + self._parts.context.push.total_timeout_s)
                raise InfrastructureError("partitions were added to the parked log: it is read again")
            found = dict.fromkeys(self._apply(record, partition) for record in records)
            found.pop(None, None)
            for lane in found:
                self.redelivery.found(str(lane))
            while self._store.ended_elsewhere:
                self.redelivery.turn_now(self._store.ended_elsewhere.pop())
            while self._store.requested:
                self.redelivery.attempt_requested(self._store.requested.pop())
            position = records[-1].offset + 1
            self._store.advance(partition, position)
            self._parts.context.held.applied(partition, position)
            self._moved = True
            count += len(records)
        return count

    def _apply(self, record: ConsumerRecord, partition: int) -> str | None:
        """Apply a record to the store; returns the lane of a new delivery."""
        lane = (record.key or b"").partition(b"\t")[0].decode(errors="replace")
        displaced = partition_of_subscription(lane, self._store.partitions) != partition
        return self._store.apply(record.key, record.value, record.offset, displaced)

    def _follow_results(self) -> int:
        """Apply the results reported by receivers; returns their number."""
        count = 0
        for records in self._results.poll(0.0).values():
            for record in records:
                result = unless_damaged(RESULTS_LOG, record.offset, decode_result, record.value)
                if result is not None:
                    self.redelivery.reported(result)
            self._store.remember(_RESULTS, b"%d" % (records[-1].offset + 1))
            self._moved = True
            count += len(records)
        return count

    def _idle_s(self) -> float:
        """The time until the next turn, in seconds, without newly parked deliveries."""
        turn_ms = self.redelivery.next_turn_ms()
        longest_s = _RESULT_S if self._store.awaits_any() else IDLE_S
        return longest_s if turn_ms is None else min(max((turn_ms - time_ms()) / 1000, 0.0), longest_s)

    def _read_control(self) -> None:
        """Read changes of subscriptions. Raises InfrastructureError, then after the end of the pushes in flight: pushes
        without a written outcome are repeated by the next session."""
        context = self._parts.context
        try:
            context.subscriptions.catch_up(self._parts.kafka.request_timeout_s)
        except InfrastructureError:
            self.end(time.monotonic() + context.push.total_timeout_s)
            raise
        self._control_read_at = time.monotonic()
        self.redelivery.check_subscriptions()

    def _write(self) -> None:
        """First the outcomes, then the ends of deliveries, then the file: a crash in between repeats a push, and loses
        no delivery."""
        if self._journal.dirty:
            gone, suspended = self._journal.gone, self._journal.suspended
            self._journal.gone, self._journal.suspended = set(), {}
            try:
                if gone:
                    self._parts.end_subscriptions(gone)
            finally:
                # Pushes without a written outcome are repeated by the next session.
                self._journal.catch_up()
            self._moved = True
            if suspended:
                self._parts.suspend_subscriptions(suspended)
                self._save_health()
                self._read_control()
                self.redelivery.suspensions_written()
        if time.monotonic() - self._health_saved_at > _HEALTH_S:
            self._save_health()
        if self._moved or time.monotonic() - self._refreshed_at > _REFRESH_S:
            self._commit()
        self._committed = time.monotonic()
        if self._committed > self._count_at:
            self._count()

    def _count(self) -> None:
        began = time.monotonic()
        self.figures = dataclasses.replace(self.redelivery.statistics(), unread=self._parked.unread())
        ended = time.monotonic()
        self._count_at = ended + max(IDLE_S, (ended - began) * _FIGURES_SHARE)

    def _commit(self) -> None:
        self._store.remember(_READ_MS, b"%d" % time_ms())
        self._store.commit()
        self._moved = False
        self._refreshed_at = time.monotonic()

    def _save_health(self) -> None:
        self._health_saved_at = time.monotonic()
        self._moved = self._memory.save() or self._moved

    def _discard_file(self, why: Discontinued) -> NoReturn:
        """Raises UnusableFile; the next session begins with an empty file."""
        self._store.close()
        discard(self._parts.file)
        raise UnusableFile(f"{why}; it is read again from its beginning") from why


def _opened(file: Path, log: str) -> ParkedStore:
    try:
        store = ParkedStore(file, log)
    except UnusableFile as error:
        logger.warning("%s; it is rebuilt from the log", error)
        discard(file)
        return ParkedStore(file, log)
    try:
        read_ms = int(store.recall(_READ_MS) or 0)
        if store.positions() and is_due(read_ms + _VALID_MS, read_ms, time_ms()):
            # Nulls of deliveries that a job on another host has finished since may have been compacted away.
            logger.info("the file of parked deliveries, %s, may be older than half a day: the log is read again", file)
            store.forget()
    except BaseException:
        store.close()
        raise
    return store


def discard(file: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)
