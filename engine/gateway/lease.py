"""Leader election among processes: a lease, decided by the order of a log.

Candidates follow the `lease` log. The holder appends a renewal every few seconds; without one for `LEASE_S`, the others
append claims for the next term, and the first claim in the log wins. No clocks are compared: each candidate counts from
the time at which it read a record. Compared with a Kafka consumer group, the decision is a testable fold, and the
holder can compute when it may have lost the lease.

The log also shows each gateway to the others. A gateway appends a record before its first answer, and one every ten
minutes. A holder without other gateways is the sole gateway for HOLD_S, as its renewals state. A starting gateway waits
until the holder's last record does not state it, or for LEASE_S.

`Lease` decides, `LeaseKeeper` reads and appends, `SingletonTasks` runs the singleton work.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import uuid
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from arborcast.core.backoff import Backoff
from arborcast.core.eventlog.lease import LeaseLog, LeaseTimes
from arborcast.core.eventlog.topics import LEASE_LOG
from arborcast.core.fence import clock
from arborcast.core.settings import KafkaSettings
from arborcast.core.threads import Service
from arborcast.core.versions import Versioned, VersionedCodec
from arborcast.directory.sync.sync import DirectorySync
from arborcast.ingest.state.changes import GatewayPositions

# Besides LEASE_S, a take-over takes up to RENEW_S and an append.
_TIMES = LeaseTimes(lease_s=5.0, hold_s=4.0, renew_s=1.0, request_s=1.5)
LEASE_S, HOLD_S, RENEW_S = _TIMES.lease_s, _TIMES.hold_s, _TIMES.renew_s

# Interval at which a gateway without the lease appends a record, and for which it counts as existing.
_SHOW_S = 600.0
_SHOWN_S = 3600.0

KEY = b"duties"

VERSION = 1


class LeaseRecord(Versioned, frozen=True, kw_only=True, rename={"v": "version"}):
    """A record of the lease. A claim of term 0 takes no lease: it shows that its gateway exists. `sole`: the holder has
    seen no other gateway."""

    kind: Literal["claim", "renewal", "release"]
    holder: str
    term: int
    v: int = VERSION
    sole: bool = False


_codec = VersionedCodec(LeaseRecord, "a lease record", VERSION, readable=True)


def encode(record: LeaseRecord) -> tuple[bytes, bytes]:
    return KEY, _codec.encode(record)


def decode(key: bytes, value: bytes | None) -> LeaseRecord:
    """Raises RecordVersionError for a newer version, InfrastructureError for other records."""
    return _codec.decode(value)


@dataclass
class Lease:
    """The lease as seen by one candidate. Times are seconds of one monotonic clock.

    `me` is this process: a name that survives a restart, then # and a random part. `sole` is that of the holder's last
    record. `began` is when the first own record was read, `shown` when the last one was. `others` are other gateways
    and when each was seen: for an hour, also after a release, since other workers of it may still answer.
    """

    me: str
    holder: str = ""
    term: int = 0
    seen: float = float("-inf")
    sole: bool = False
    shown: float = float("-inf")
    began: float = float("inf")
    others: dict[str, float] = field(default_factory=dict)

    def apply(self, record: LeaseRecord, now: float) -> None:
        """Apply the log's next record. Of several claims for a term the first counts; records of past terms do not."""
        if record.holder == self.me:
            self.shown, self.began = now, min(self.began, now)
        elif not self._is_namesake(record.holder):
            self.others[record.holder.partition("#")[0]] = now
        # A renewal counts even if another claim seemed to be the first: the log's beginning, with the first claim, may
        # have been deleted.
        if record.term < self.term or (record.kind == "claim" and record.term == self.term):
            return
        self.term = record.term
        self.holder = "" if record.kind == "release" else record.holder
        self.seen, self.sole = now, record.sole

    def next(self, now: float) -> LeaseRecord | None:
        """The record to append: a renewal of the own lease, a claim of a free one, a sign of existence, or none."""
        if self.is_held:
            return LeaseRecord(kind="renewal", holder=self.me, term=self.term, sole=self.is_alone(now))
        # A lease of an earlier process of the same name is free: that process has ended, since only one can listen
        # there.
        if not self.holder or self._is_namesake(self.holder) or now - self.seen > LEASE_S:
            return LeaseRecord(kind="claim", holder=self.me, term=self.term + 1)
        return LeaseRecord(kind="claim", holder=self.me, term=0) if now - self.shown > _SHOW_S else None

    def is_alone(self, now: float) -> bool:
        """Whether no other gateway was seen recently."""
        self.others = {name: seen for name, seen in self.others.items() if now - seen < _SHOWN_S}
        return not self.others

    def is_known(self, now: float) -> bool:
        """Whether no other gateway is the sole one any more, since this one has appended its record."""
        another_is_sole = self.sole and self.holder and not self._is_namesake(self.holder)
        return now - self.began > LEASE_S or (now >= self.began and not another_is_sole)

    def _is_namesake(self, holder: str) -> bool:
        return holder.partition("#")[0] == self.me.partition("#")[0]

    @property
    def is_held(self) -> bool:
        """Whether this process is the holder, as of the records read."""
        return self.holder == self.me

    def release(self) -> LeaseRecord | None:
        """The record that releases the lease; None without it."""
        return LeaseRecord(kind="release", holder=self.me, term=self.term) if self.is_held else None


logger = logging.getLogger("arborcast.gateway")

# Time that a stop may spend on the release.
_RELEASE_S = 1.0


def name_of(host: str, port: int) -> str:
    """A name unique at one time, since only one process can listen there."""
    return f"{socket.gethostname()}-{uuid.getnode():x}/{host}:{port}"


class LeaseKeeper:
    """`changed(True)` is called when the lease is won, `changed(False)` when it is or may be lost: in the keeper's
    thread, one call at a time."""

    def __init__(
        self, kafka: KafkaSettings, name: str, changed: Callable[[bool], None], positions: GatewayPositions
    ) -> None:
        self._lease = Lease(f"{name}#{uuid.uuid4().hex[:8]}")
        self._changed = changed
        self._positions = positions
        # Records from before the start have an unknown age. They count from now, so that a live holder has time to
        # renew.
        self._log = LeaseLog(kafka, LEASE_LOG, _TIMES, encode, decode, self._apply)
        self._service = Service(
            "lease",
            self._step,
            backoff=Backoff(RENEW_S, RENEW_S),
            close=self._release,
            what="the lease of the gateways' leader",
        )
        self._holds = False
        self._sent = float("-inf")  # when the last acknowledged own record was sent

    @property
    def holds(self) -> bool:
        """Whether this process currently runs the singleton work."""
        return self._holds and clock() - self._sent < HOLD_S

    def start(self) -> None:
        """Start to compete. The log must exist."""
        self._service.start()

    def stop(self) -> None:
        """Release it, so that another process can begin at once."""
        self._service.stop(_RELEASE_S)
        self._notify(False)
        self._log.close()

    def _step(self) -> float:
        try:
            self._append_next()
        finally:
            # Also after a failure: without a recent own renewal the lease may be another's.
            self._notify(self._lease.is_held and clock() - self._sent < HOLD_S)
        return RENEW_S

    def _append_next(self) -> None:
        self._log.read()
        now = clock()
        if not self._lease.is_alone(now):
            self._positions.is_sole_until(0)  # before a renewal with `sole` is in the log
        record = self._lease.next(now)
        if record is not None:
            self._log.append(record)
            if self._lease.is_held:
                self._sent = now
            sole = record.sole and self._lease.is_held and self._lease.is_alone(now)
            self._positions.is_sole_until(now + HOLD_S if sole else 0)
        if self._lease.is_known(clock()):
            self._positions.shown = True

    def _release(self) -> None:
        self._notify(False)
        self._positions.is_sole_until(0)
        self._log.leave(self._lease.release())

    def _apply(self, record: LeaseRecord, _offset: int) -> None:
        self._lease.apply(record, clock())

    def _notify(self, holds: bool) -> None:
        if holds != self._holds:
            self._holds = holds
            logger.info("this gateway is %s the leader", "now" if holds else "no longer")
            self._changed(holds)


Work = Callable[[], Coroutine[Any, Any, None]]


def report_failure(failed: Callable[[Exception], None], task: asyncio.Task[None]) -> None:
    """Call `failed` with the error of an ended task, if it has one."""
    if not task.cancelled() and (error := task.exception()) is not None:
        failed(error if isinstance(error, Exception) else RuntimeError(repr(error)))


class SingletonTasks:
    """Tasks that run in one gateway only, the holder of the lease: ending expired subscriptions, demand-based
    publishing, directory synchronisation. Started with the lease and cancelled without it. Tasks are idempotent, since
    two processes may be holders for a moment; the synchronisation checks the lease before each run.

    `work` makes the tasks, by name. Used on the event loop. `failed` is called with the error of a task.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        name: str,
        work: Mapping[str, Work],
        sync: DirectorySync | None,
        failed: Callable[[Exception], None],
        positions: GatewayPositions,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._work = work
        self._sync = sync
        self._failed = failed
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False
        self._keeper = LeaseKeeper(kafka, name, self._changed, positions)

    @property
    def are_active(self) -> bool:
        """Whether this process runs them."""
        return self._keeper.holds

    def start(self) -> None:
        if self._sync is not None:
            self._sync.allowed = lambda: self._keeper.holds
            self._sync.start()
        self._keeper.start()

    def cancel(self) -> None:
        """Cancel the tasks; no more are started."""
        self._closing = True
        self._end_tasks()

    def stop(self) -> None:
        """Release the lease. Waits for Kafka a moment: not for the event loop's thread."""
        self._keeper.stop()

    def _changed(self, holds: bool) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._switch, holds)

    def _switch(self, holds: bool) -> None:
        self._end_tasks()
        if self._sync is not None and holds:
            self._sync.wake()
        if holds and not self._closing:
            for name, make in self._work.items():
                task = self._loop.create_task(make(), name=name)
                task.add_done_callback(partial(report_failure, self._failed))
                self._tasks.append(task)

    def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
