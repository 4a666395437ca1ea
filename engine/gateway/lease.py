"""Which of several processes does what must be done once: a lease, decided by the order of a log.

Candidates follow the `lease` log. Whoever holds the lease appends a renewal every few seconds; when none has come for
`LEASE_S`, the others append claims for the next term, and the first of these in the log has it. No clocks are
compared: each candidate counts from when it saw a record. Why a log and not a Kafka consumer group: the decision is
a fold that can be tested, the holder knows by itself that it may have lost the lease, and the broker needs to do
nothing but read and append.

The log also shows each gateway to the others. A gateway appends a record before it answers its first request, and one
every ten minutes. A holder that has seen no other gateway is the sole gateway for HOLD_S, and its renewals say so. A
gateway that begins waits until the holder's last record does not say so, or for LEASE_S.

`Lease` decides, `LeaseKeeper` reads and appends, `SingletonTasks` runs what must be done once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import uuid
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
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

# Beside LEASE_S a takeover takes up to a look (RENEW_S) and an append.
_TIMES = LeaseTimes(lease_s=5.0, hold_s=4.0, renew_s=1.0, request_s=1.5)
LEASE_S, HOLD_S, RENEW_S = _TIMES.lease_s, _TIMES.hold_s, _TIMES.renew_s

# A gateway that holds no lease shows itself so often, and is taken into account for so long.
_SHOW_S = 600.0
_SHOWN_S = 3600.0

KEY = b"duties"

VERSION = 1


class LeaseRecord(Versioned, frozen=True, kw_only=True, rename={"v": "version"}):
    """One word about the lease. A claim of term 0 takes no lease: it shows that its gateway exists. `sole` says that
    the holder has seen no other gateway."""

    kind: Literal["claim", "renewal", "release"]
    holder: str
    term: int
    v: int = VERSION
    sole: bool = False


_codec = VersionedCodec(LeaseRecord, "a lease record", VERSION, readable=True)


def encode(record: LeaseRecord) -> tuple[bytes, bytes]:
    """Key and value."""
    return KEY, _codec.encode(record)


def decode(key: bytes, value: bytes | None) -> LeaseRecord:
    """Raises RecordVersionError for a newer Arborcast's, InfrastructureError for what is no lease record."""
    return _codec.decode(value)


@dataclass
class Lease:
    """The lease as one candidate sees it. Times are seconds of one monotonic clock.

    `me` is this process and no other: a name that stays when the process is started again, then # and anything. `sole`
    is that of the holder's last record. `began` is when our first record was read back, `shown` when the last one was.
    `others` are the names of other gateways, and when each was seen: for an hour, also when it has released the lease,
    since other workers of it may still answer.
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
        """The log's next record. Of several claims for a term the first counts; what a past term says does not."""
        if record.holder == self.me:
            self.shown, self.began = now, min(self.began, now)
        elif not self._is_namesake(record.holder):
            self.others[record.holder.partition("#")[0]] = now
        # A renewal counts even where another's claim seemed to be the first: then the log's beginning is gone, and all
        # that was left of the term were claims that came second.
        if record.term < self.term or (record.kind == "claim" and record.term == self.term):
            return
        self.term = record.term
        self.holder = "" if record.kind == "release" else record.holder
        self.seen, self.sole = now, record.sole

    def next(self, now: float) -> LeaseRecord | None:
        """What to append now: a renewal of what is ours, a claim of what is free, a sign that we exist, or nothing."""
        if self.mine:
            return LeaseRecord(kind="renewal", holder=self.me, term=self.term, sole=self.is_alone(now))
        # A lease of an earlier process of our name is free: it is gone, or we could not listen where it did.
        if not self.holder or self._is_namesake(self.holder) or now - self.seen > LEASE_S:
            return LeaseRecord(kind="claim", holder=self.me, term=self.term + 1)
        return LeaseRecord(kind="claim", holder=self.me, term=0) if now - self.shown > _SHOW_S else None

    def is_alone(self, now: float) -> bool:
        """Whether no other gateway has shown itself lately."""
        self.others = {name: seen for name, seen in self.others.items() if now - seen < _SHOWN_S}
        return not self.others

    def is_known(self, now: float) -> bool:
        """Whether no other gateway is the sole one any more, since we have shown ourselves."""
        another_is_sole = self.sole and self.holder and not self._is_namesake(self.holder)
        return now - self.began > LEASE_S or (now >= self.began and not another_is_sole)

    def _is_namesake(self, holder: str) -> bool:
        return holder.partition("#")[0] == self.me.partition("#")[0]

    @property
    def mine(self) -> bool:
        """Whether it is ours, as far as we have read."""
        return self.holder == self.me

    def release(self) -> LeaseRecord | None:
        """What tells the others not to wait; None when the lease is not ours."""
        return LeaseRecord(kind="release", holder=self.me, term=self.term) if self.mine else None


logger = logging.getLogger("arborcast.gateway")

# What a stop may spend on telling the others not to wait.
_RELEASE_S = 1.0


def name_of(host: str, port: int) -> str:
    """A name that no other process has at this time, since only one can listen there."""
    return f"{socket.gethostname()}-{uuid.getnode():x}/{host}:{port}"


class LeaseKeeper:
    """`changed(True)` is called when the lease has become ours, `changed(False)` when it no longer is, or may no longer
    be: in the keeper's thread, one call after the other."""

    def __init__(
        self, kafka: KafkaSettings, name: str, changed: Callable[[bool], None], positions: GatewayPositions
    ) -> None:
        self._lease = Lease(f"{name}#{uuid.uuid4().hex[:8]}")
        self._changed = changed
        self._positions = positions
        # Records from before our start are of unknown age. They count from now, so that a holder that lives has the
        # time to renew.
        self._log = LeaseLog(kafka, LEASE_LOG, _TIMES, encode, decode, self._apply)
        self._service = Service(
            "lease",
            self._step,
            backoff=Backoff(RENEW_S, RENEW_S),
            close=self._let_go,
            what="the lease on what must be done once",
        )
        self._told = False
        self._sent = float("-inf")  # when the last word of ours that Kafka has was on its way

    @property
    def holds(self) -> bool:
        """Whether what must be done once is ours at this very moment."""
        return self._told and clock() - self._sent < HOLD_S

    @property
    def holder(self) -> str:
        """Who has it, as far as we have read; empty when it is free."""
        return self._lease.holder

    def start(self) -> None:
        """Begin to try. The log must have been created."""
        self._service.start()

    def stop(self) -> None:
        """Let go of it, so that another can begin at once."""
        self._service.stop(_RELEASE_S)
        self._tell(False)
        self._log.close()

    def _step(self) -> float:
        try:
            self._look()
        finally:
            # Also after a failure: without a recent renewal of ours in the log the lease may be another's.
            self._tell(self._lease.mine and clock() - self._sent < HOLD_S)
        return RENEW_S

    def _look(self) -> None:
        self._log.read()
        now = clock()
        if not self._lease.is_alone(now):
            self._positions.is_sole_until(0)  # before a renewal that says so is in the log
        word = self._lease.next(now)
        if word is not None:
            self._log.append(word)
            if self._lease.mine:
                self._sent = now
            sole = word.sole and self._lease.mine and self._lease.is_alone(now)
            self._positions.is_sole_until(now + HOLD_S if sole else 0)
        if self._lease.is_known(clock()):
            self._positions.shown = True

    def _let_go(self) -> None:
        self._tell(False)
        self._positions.is_sole_until(0)
        self._log.leave(self._lease.release())

    def _apply(self, record: LeaseRecord, _offset: int) -> None:
        self._lease.apply(record, clock())

    def _tell(self, holds: bool) -> None:
        if holds != self._told:
            self._told = holds
            logger.info("what must be done once is %s", "ours" if holds else "no longer ours")
            self._changed(holds)


Work = Callable[[], Coroutine[Any, Any, None]]


class SingletonTasks:
    """The tasks that run in one gateway only, the one that holds the lease: ending what has expired, asking publishers
    for what is wanted, the directory's sync.

    Begun with the lease and cancelled without it. For the moment in which two processes believe to have it, tasks do no
    harm twice; the sync, which must not run twice, looks at the lease before each of its runs. `work` makes the tasks,
    by name. Made and used on the event loop. `failed` is called with what ended a task.
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
        self._synced = False
        self._closing = False
        self._keeper = LeaseKeeper(kafka, name, self._changed, positions)

    @property
    def ours(self) -> bool:
        """Whether they are done by this process now."""
        return self._keeper.holds

    def start(self) -> None:
        self._keeper.start()

    def cancel(self) -> None:
        """End the tasks; none begins any more."""
        self._closing = True
        self._end_tasks()

    def stop(self) -> None:
        """Let go of the lease. Waits for Kafka a moment: not for the event loop's thread."""
        self._keeper.stop()

    def _changed(self, holds: bool) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._switch, holds)

    def _switch(self, holds: bool) -> None:
        self._end_tasks()
        if self._sync is not None:
            if not holds:
                self._sync.pause()
            elif self._synced:
                self._sync.resume()
            elif not self._closing:
                self._sync.allow_while(lambda: self._keeper.holds)
                self._sync.start()
                self._synced = True
        if holds and not self._closing:
            for name, make in self._work.items():
                task = self._loop.create_task(make(), name=name)
                task.add_done_callback(self._ended)
                self._tasks.append(task)

    def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error if isinstance(error, Exception) else RuntimeError(repr(error)))
