"""One dispatch job at a time on the same logs: a lease, decided by the order of the log `dispatch-lease`.

The holder appends a renewal every other second. A job that starts reads the log. After a renewal it is refused; without
one for LEASE_S, or when the process of the holder has ended on this host, it appends a claim. A claim contains the
expected offset of itself, and counts only there: after any other record it is void for every reader. So no clocks are
compared, and there are never two holders.

A holder without a renewal for HOLD_S defers its pushes (`core.fence`), before another can have the lease. After a later
claim than its own it ends at once. `JobLeaseState` is pure; `JobLease` reads and appends.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from arborcast.core.backoff import Backoff
from arborcast.core.errors import ArborcastError, InfrastructureError
from arborcast.core.eventlog.damaged import unless_damaged
from arborcast.core.eventlog.lease import LeaseLog, LeaseTimes
from arborcast.core.eventlog.scan import LogScan, OffsetRange
from arborcast.core.eventlog.topics import JOB_LEASE_LOG, ensure_topics
from arborcast.core.fence import Fence, clock
from arborcast.core.settings import KafkaSettings
from arborcast.core.threads import Service
from arborcast.core.versions import Versioned, VersionedCodec
from arborcast.core.wall_clock import time_ms
from arborcast.dispatch.job.heartbeat import started_at

logger = logging.getLogger(__name__)

# LEASE_S is shorter than a start of the job, which reads the log meanwhile.
_TIMES = LeaseTimes(lease_s=10.0, hold_s=8.0, renew_s=2.0, request_s=3.0)
LEASE_S, HOLD_S, RENEW_S = _TIMES.lease_s, _TIMES.hold_s, _TIMES.renew_s

# Poll interval while waiting for the lease, or for Kafka.
_POLL_S = 0.5

# After this time without success the log is read from its beginning.
_REREAD_S = 30.0

# Timeout of the release during a stop.
_RELEASE_S = 2.0

KEY = b"job"

VERSION = 1


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A job, as other jobs see it."""

    name: str
    """Unique for each process."""
    host: str = ""
    pid: int = 0
    started: int = 0
    """Distinguishes it from a later process with the same pid; see `heartbeat.started_at`."""
    machine: str = ""
    """The scope of pids: a boot of a host, and a namespace there."""
    since_ms: int = 0
    home: str = ""

    def description(self) -> str:
        since = datetime.fromtimestamp(self.since_ms / 1000, UTC)
        return (
            f"process {self.pid} on host {self.host}, since {since:%Y-%m-%d %H:%M:%S} UTC, with the data directory "
            f"{self.home}"
        )


class JobLeaseRecord(Versioned, frozen=True, kw_only=True, rename={"v": "version"}):
    """A claim, renewal or release; `at` is the offset of the holder's claim."""

    kind: Literal["claim", "renewal", "release"]
    holder: Holder
    at: int
    v: int = VERSION


_codec = VersionedCodec(JobLeaseRecord, "a record of the job's lease", VERSION, readable=True)


def encode(record: JobLeaseRecord) -> tuple[bytes, bytes]:
    return KEY, _codec.encode(record)


def decode(key: bytes, value: bytes | None) -> JobLeaseRecord:
    """Raises RecordVersionError for a newer version, InfrastructureError for other records."""
    return _codec.decode(value)


@dataclass
class JobLeaseState:
    """The lease as seen by one job. Times are seconds of one monotonic clock."""

    me: Holder
    holder: Holder | None = None
    at: int = -1
    """The offset of the valid claim."""
    end: int = 0
    """The offset of the next record."""
    last_record_at: float = float("-inf")
    """The time of the holder's last record."""
    renewals: int = 0
    """Renewals of the holder since its claim, or since the first read."""

    def apply(self, record: JobLeaseRecord, offset: int, now: float) -> None:
        """Apply the next record of the log."""
        self.end = offset + 1
        if record.kind == "claim":
            if record.at != offset:
                return  # another record preceded it
            self.renewals = 0
        elif record.at < self.at:
            return  # of a job that has lost the lease
        elif record.kind == "renewal":
            self.renewals += 1
        self.at = record.at
        self.holder = None if record.kind == "release" else record.holder
        self.last_record_at = now

    @property
    def is_held(self) -> bool:
        """Whether this job is the holder, by the records read so far."""
        return self.holder is not None and self.holder.name == self.me.name

    def claim(self) -> JobLeaseRecord:
        """The record that takes the lease, unless another is written before it. Append it right after a read to the
        end."""
        return JobLeaseRecord(kind="claim", holder=self.me, at=self.end)

    def renewal(self) -> JobLeaseRecord:
        return JobLeaseRecord(kind="renewal", holder=self.me, at=self.at)

    def release(self) -> JobLeaseRecord:
        return JobLeaseRecord(kind="release", holder=self.me, at=self.at)


def is_held(kafka: KafkaSettings, patience_s: float = 0.0) -> bool:
    """Whether a job has the lease: its last record is younger than the lease, or another one arrives within
    `patience_s`, whatever its host's clock. Raises InfrastructureError."""
    kafka = dataclasses.replace(kafka, request_timeout_s=min(kafka.request_timeout_s, _TIMES.request_s))
    with LogScan(kafka, JOB_LEASE_LOG) as log:
        until = time.monotonic() + patience_s
        end = log.ends()[0]
        for record in log.read({0: OffsetRange(max(end - 1, log.beginnings()[0]), end)}):
            last = unless_damaged(JOB_LEASE_LOG, record.offset, decode, KEY, record.value)
            if last is not None and last.kind == "release":
                return False
            if abs(time.time() - record.timestamp / 1000) <= LEASE_S:
                return True
        while time.monotonic() < until:
            time.sleep(_POLL_S)
            if log.ends()[0] > end:
                return True
    return False


def this_job(home: Path) -> Holder:
    return Holder(
        name=uuid.uuid4().hex,
        host=socket.gethostname(),
        pid=os.getpid(),
        started=started_at(os.getpid()),
        machine=_machine(),
        since_ms=time_ms(),
        home=str(home),
    )


def has_ended(holder: Holder) -> bool:
    """Whether this process has certainly ended. False if unknown: on another host or in another container."""
    if holder.machine != _machine():
        return False
    is_visible = True
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        is_visible = False  # a process of another user
    started = started_at(holder.pid)
    return started != holder.started and (is_visible or started != 0)


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{socket.gethostname()}/{uuid.getnode():x}"


class JobLease:
    """Acquires the lease in a thread after the start, and renews it until `release`. If another job has or takes the
    lease, `end` is called once in that thread, with the reason; it must end this process without another push."""

    def __init__(self, kafka: KafkaSettings, home: Path, end: Callable[[str], None]) -> None:
        me = this_job(home)
        self.file = home / "run" / f"lease-{me.name}"
        """The file of the fence, from the first lease on."""
        self._kafka = kafka
        self._end = end
        self._me = me
        self._fence: Fence | None = None
        self._start_reading()
        self._claim_at = -1  # the offset of our valid claim
        self._over = False  # another job has the lease, or the log is unreadable
        self._failure: ArborcastError | None = None
        self._settled = threading.Event()
        self._service = Service(
            "lease",
            self._step,
            backoff=Backoff(_POLL_S, _POLL_S),
            close=lambda: self._log.leave(self._lease.release() if self._lease.is_held else None),
            what=f"the lease on the logs (pushes wait from {HOLD_S:g} s after its last renewal)",
        )

    def start(self) -> None:
        self._service.start()

    def acquire(self, timeout_s: float, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Wait until this job has the lease, or is `stopped`; returns whether it has. Raises InfrastructureError if
        Kafka has not answered within `timeout_s`, besides the wait for another job."""
        deadline = clock() + timeout_s + LEASE_S
        while not self._settled.wait(0.1):
            if stopped():
                return False
            if clock() > deadline:
                break
        if self._claim_at < 0:
            raise self._failure or InfrastructureError("the lease on the logs could not be acquired in time", 5.0)
        return True

    def release(self) -> None:
        """Release the lease, so that another job can start at once. No further push begins."""
        # `_hold_until` checks for the stop before the fence is shut.
        self._service.stop()
        if self._fence is not None:
            self._fence.shut()
        self._service.stop(_RELEASE_S)
        self._log.close()

    def _start_reading(self) -> None:
        self._exists = False  # whether the log exists, as far as known
        self._began = math.inf  # the time of the first complete read
        self._succeeded_at = clock()
        self._lease = JobLeaseState(self._me)
        self._log = LeaseLog(
            self._kafka,
            JOB_LEASE_LOG,
            _TIMES,
            encode,
            decode,
            lambda record, at: self._lease.apply(record, at, clock()),
        )

    def _step(self) -> float | None:
        try:
            self._renew_or_claim()
        except ArborcastError as error:
            self._failed(error)
            if not self._over:
                raise
        else:
            self._succeeded_at = clock()
        if self._over:
            return None
        return _POLL_S if self._claim_at < 0 else RENEW_S

    def _failed(self, error: ArborcastError) -> None:
        self._failure = error
        if self._claim_at < 0 and not isinstance(error, InfrastructureError):
            # Another use of the topic, or a record of a newer release: an operator must repair it.
            self._over = True
            self._settled.set()
        elif clock() - self._succeeded_at > _REREAD_S:
            # The log may have been replaced.
            self._log.leave(None)
            self._log.close()
            self._start_reading()

    def _renew_or_claim(self) -> None:
        if not self._exists:
            ensure_topics(self._log.kafka, (JOB_LEASE_LOG,))
            self._exists = True
        self._read()
        self._began = min(self._began, clock())
        if self._claim_at >= 0 and self._lease.at not in (self._claim_at, -1):
            self._lost()
        elif self._lease.is_held or self._try_claim():
            # The time before the append: readers count from a later one.
            now = clock()
            self._append(self._lease.renewal())
            if self._lease.is_held:
                self._hold_until(now + HOLD_S)

    def _read(self) -> None:
        # An empty log need not begin with 0.
        self._lease.end = max(self._lease.end, self._log.read())

    def _append(self, record: JobLeaseRecord) -> None:
        self._lease.end = max(self._lease.end, self._log.append(record))

    def _try_claim(self) -> bool:
        """Claim the lease if it is free; returns whether this job has it."""
        lease, holder = self._lease, self._lease.holder
        if holder is not None and not has_ended(holder):
            if lease.renewals and lease.last_record_at > self._began:
                self._finish(
                    f"another dispatch job works on these logs (kafka.prefix = {self._kafka.prefix}): "
                    f"{holder.description()}. There can be only one: stop it first (arborcast down, or SIGTERM; "
                    "arborcast up --no-job starts an engine without one), or give this one another kafka.prefix and a "
                    "data directory of its own"
                )
                return False
            if clock() - max(lease.last_record_at, self._began) <= LEASE_S:
                return False
        if holder is not None:
            logger.info(
                "the previous dispatch job is silent or has ended: %s. This job takes over", holder.description()
            )
        self._append(lease.claim())
        return lease.is_held

    def _hold_until(self, until: float) -> None:
        if self._fence is None:
            # Only with the lease: this removes the fence of an earlier job.
            self._fence = Fence(self.file)
        if not self._service.stopping:
            self._fence.extend(until)
        self._claim_at = self._lease.at
        self._settled.set()

    def _lost(self) -> None:
        winner = self._lease.holder
        successor = winner.description() if winner is not None else "one that has ended since"
        self._finish(
            "this dispatch job was silent for too long (stopped, asleep, or cut off from Kafka), and another has taken "
            f"over: {successor}. This job ends, without another push"
        )

    def _finish(self, why: str) -> None:
        self._over = True
        if self._fence is not None:
            self._fence.shut()
        self._end(why)
        self._settled.set()  # if `end` has not ended the process
