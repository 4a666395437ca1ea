"""The table `slo`, from the `attempts` log: each delivery counts once, with its first push or its end without one; and
each push as an attempt.

Hours are counted and replaced as wholes, in one commit with the positions in the log: records that are read again after
a crash are counted once. Reading 28 days costs a row per hour and active subscription, not one per delivery.

A late delivery counts for the receiver if, between its acceptance and its push, the receiver had refused or not
answered a push, or its subscription was held (paused, suspended, earlier messages parked, dead letters redriven).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec
import pyarrow as pa

from arborcast.core.eventlog.client import ConsumerRecord
from arborcast.core.eventlog.damaged import unless_damaged
from arborcast.core.settings import KafkaSettings
from arborcast.core.versions import Versioned, VersionedCodec
from arborcast.dispatch.hot.batch_outcomes import WORKER_ENDED
from arborcast.dispatch.hot.intake import QUEUED, STRICT
from arborcast.dispatch.logs.attempts import VERSION, State
from arborcast.dispatch.recording.folds import moment
from arborcast.dispatch.recording.follower import BYTES_PER_COMMIT, GatheringFollower
from arborcast.dispatch.tables import SLO
from arborcast.dispatch.tables.delta_table import DeltaTableWriter
from arborcast.dispatch.tables.spec import Row, queried
from arborcast.topic_model.subscriptions import queue_topic

_HOUR_MS = 3_600_000

_BYTES_PER_STEP = 2 * 1024 * 1024

# Hours in memory until the next commit. With more, as in a backlog of the log, the commit is earlier.
_MOST_HOURS = 3

# Older holds of receivers, without a later attempt, are ignored after a restart.
_HELD_DAYS = 2

Result = Literal["in_time", "late", "lost", "receiver"]

Counted = Result | Literal["delivered", "failed"]

# Waits that the receiver does not cause.
_OWN_WAITS = frozenset({STRICT, QUEUED, WORKER_ENDED})

# Ends without a push that neither the receiver nor the subscriber causes.
_OWN_ENDS = frozenset({"lifespan", "resources"})

_OWN_ERRORS = frozenset({"internal", "envelope"})


class SloAttempt(msgspec.Struct, frozen=True, gc=False):
    """The fields of an Attempt that count here: decoding the others takes several times as long."""

    subscription: str
    number: int
    push: str
    state: State
    accepted_ms: int
    started_ms: int
    duration_ms: float
    error: str = ""
    detail: str = ""


class _Record(Versioned, frozen=True, gc=False):
    attempts: list[SloAttempt]


_codec = VersionedCodec(_Record, "an attempts record", VERSION)


def is_accepted(row: SloAttempt) -> bool:
    return row.state == "delivered" or row.error == "later"


def result_of(row: SloAttempt, latency_ms: float, held_ms: int) -> Result | None:
    """The result of a row for the objective; None for a row that does not count. `held_ms` is the time of the
    receiver's last fault, or of the last wait for it; 0: none."""
    if row.push:
        if row.number != 1:
            return None
        if not is_accepted(row):
            return "lost" if row.error in _OWN_ERRORS else "receiver"
        if row.started_ms + row.duration_ms - row.accepted_ms <= latency_ms:
            return "in_time"
        return "receiver" if held_ms >= row.accepted_ms else "late"
    if row.number > 1 or row.state in ("delivered", "parked"):
        return None  # a later result, or a wait
    if row.error in _OWN_ERRORS:
        return "lost"
    if row.number or row.error not in _OWN_ENDS:
        return None
    return "receiver" if held_ms >= row.accepted_ms else "lost"


def holds(row: SloAttempt) -> bool:
    """Whether the row is a fault of the receiver, or a wait for it. A redrive, too: its letters are pushed one after
    another, as first pushes."""
    if row.push:
        return not is_accepted(row) and row.error not in _OWN_ERRORS
    waits = row.error == "redriven" or (row.error == "waiting" and row.detail not in _OWN_WAITS)
    return row.state == "parked" and waits


@dataclass
class _Count:
    owner: str
    counts: Counter[Counted]
    held_ms: int = 0


class SloTable(GatheringFollower):
    """Writes the table. `owner_of` returns the owner of a subscription, empty for an ended one; `counted` is called
    with the results of each commit."""

    def __init__(
        self,
        kafka: KafkaSettings,
        location: str,
        latency_s: float,
        owner_of: Callable[[str], str],
        counted: Callable[[Mapping[str, int]], None],
        interval_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = DeltaTableWriter(SLO, location)
        super().__init__(kafka, "attempts", [self._table], interval_s, _BYTES_PER_STEP, clock)
        self.name = "slo"
        self._latency_ms = latency_s * 1000
        self._owner_of = owner_of
        self._counted = counted
        self._hours: dict[int, dict[str, _Count]] = {}
        self._changed: set[int] = set()  # hours that differ from the table
        self._held: dict[str, int] | None = None
        self._since: Counter[Result] = Counter()

    def _gathered_bytes(self) -> int | None:
        if not self._changed:
            return None
        return BYTES_PER_COMMIT if len(self._hours) > _MOST_HOURS else 0

    def _forget(self) -> None:
        super()._forget()
        self._hours.clear()
        self._changed.clear()
        self._since.clear()
        self._held = None

    def take(self, records: Iterable[ConsumerRecord]) -> None:
        """Count the rows of these records. Damaged ones are skipped, as by the table of attempts."""
        for record in records:
            batch = unless_damaged("attempts", (record.partition, record.offset), _codec.decode, record.value)
            for row in () if batch is None else batch.attempts:
                if queue_topic(row.subscription) is None:
                    self._take(row)

    def _take(self, row: SloAttempt) -> None:
        if self._held is None:
            self._held = self._known_holds()
        held_ms = self._held.get(row.subscription, 0)
        result, is_hold = result_of(row, self._latency_ms, held_ms), holds(row)
        if is_hold:
            held_ms = self._held[row.subscription] = max(held_ms, row.started_ms)
        elif result is None and not row.push:
            return
        count = self._of(int(row.started_ms + row.duration_ms) // _HOUR_MS, row.subscription)
        count.held_ms = max(count.held_ms, held_ms if is_hold else 0)
        if row.push:
            count.counts["delivered" if is_accepted(row) else "failed"] += 1
        if result is not None:
            count.counts[result] += 1
            self._since[result] += 1

    def _of(self, hour: int, subscription: str) -> _Count:
        self._changed.add(hour)
        counts = self._hours.get(hour)
        if counts is None:
            counts = self._hours[hour] = self._known(hour)
        count = counts.get(subscription)
        if count is None:
            count = counts[subscription] = _Count(self._owner_of(subscription), Counter())
        return count

    def _known(self, hour: int) -> dict[str, _Count]:
        found: dict[str, _Count] = {}
        for row in self._queried(f"SELECT * FROM data WHERE {_where([hour])}"):  # noqa: S608  # dates made here, no foreign text
            counts: Counter[Counted] = Counter({each: row[each] for each in _COLUMNS if row[each]})
            found[row["subscription"]] = _Count(row["owner"], counts, _ms(row["held_at"]) if row["held_at"] else 0)
        return found

    def _known_holds(self) -> dict[str, int]:
        since = (datetime.now(UTC) - timedelta(days=_HELD_DAYS)).date()
        held = "SELECT subscription, MAX(held_at) AS held_at FROM data"
        rows = self._queried(f"{held} WHERE day >= '{since}' AND held_at IS NOT NULL GROUP BY subscription")
        return {row["subscription"]: _ms(row["held_at"]) for row in rows}

    def _queried(self, sql: str) -> list[Row]:
        table = self._table.open()
        table.update_incremental()
        rows: list[Row] = pa.table(queried(table, sql)).to_pylist()
        return rows

    def _extend(self, positions: Mapping[int, int]) -> int:
        rows = [
            {
                "day": moment(hour * _HOUR_MS).date(),
                "hour": moment(hour * _HOUR_MS),
                "subscription": name,
                "owner": count.owner,
                **{each: count.counts[each] for each in _COLUMNS},
                "held_at": moment(count.held_ms) if count.held_ms else None,
            }
            for hour in self._changed
            for name, count in self._hours[hour].items()
        ]
        self._table.replace(SLO.arrow(rows), self._progress(positions), _where(self._changed))
        newest = max(self._changed)  # not of all: an hour of a clock that was ahead would stay the newest
        self._hours = {newest: self._hours[newest]}
        self._changed.clear()
        oldest_ms = (newest - 24 * _HELD_DAYS) * _HOUR_MS
        self._held = {name: at_ms for name, at_ms in (self._held or {}).items() if at_ms > oldest_ms}
        self._counted({str(result): count for result, count in self._since.items()})
        self._since.clear()
        return len(rows)


_COLUMNS: Sequence[Counted] = ("in_time", "late", "lost", "receiver", "delivered", "failed")


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def _where(hours: Iterable[int]) -> str:
    """The rows of these hours. The days exclude whole partitions."""
    moments = [moment(hour * _HOUR_MS) for hour in sorted(hours)]
    days = ", ".join(f"'{each}'" for each in sorted({each.date().isoformat() for each in moments}))
    times = ", ".join(f"'{each.isoformat()}'" for each in moments)
    return f"day in ({days}) and hour in ({times})"
