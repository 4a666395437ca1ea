"""The fold over the `attempts` log: evaluations on one side, deliveries on the other. Pure."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import count
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from arborcast.core.eventlog.damaged import unless_damaged
from arborcast.core.versions import Versioned, VersionedCodec
from arborcast.dispatch.logs.attempts import RUN_NUMBERS, VERSION, Evaluation, State


# A million rows are decoded in about a second; with all their columns it would take five.
class SlimRow(msgspec.Struct, frozen=True, gc=False):
    """The fields of an Attempt with the state of a delivery."""

    notification: str
    subscription: str
    state: State
    accepted_ms: int
    error: str = ""
    batch: int = 0
    lapsed: bool = False


class SlimRecord(Versioned, frozen=True, gc=False):
    attempts: list[SlimRow]
    evaluation: Evaluation | None = None


decode = VersionedCodec(SlimRecord, "an attempts record", VERSION).decode
_NOTHING = SlimRecord(VERSION, [])


def readable(value: bytes | None) -> SlimRecord:
    """The record in a value; without attempts for a damaged one. Raises RecordVersionError."""
    return unless_damaged("attempts", f"{len(value or b'')} bytes", decode, value) or _NOTHING


Numbers = npt.NDArray[np.int64]


def changes(*columns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Where sorted columns begin a new value."""
    begins = np.zeros(len(columns[0]), np.bool_)
    begins[:1] = True
    for each in columns:
        begins[1:] |= each[1:] != each[:-1]
    return begins


DELIVERED, DEAD, EXPIRED, CANCELLED, PENDING, PURGED, LAPSED, DROPPED = range(8)
"""The state of a delivery. A purged one is dead, a lapsed one expired; neither has a stored message."""

_CODES: dict[State, int] = {
    "delivered": DELIVERED,
    "dead": DEAD,
    "expired": EXPIRED,
    "cancelled": CANCELLED,
    "dropped": DROPPED,
    "parked": PENDING,
}

REDRIVEN = "redriven"
"""The `error` of the row of a redriven dead letter: the only way from a final state to another."""
PURGED_ERROR = "purged"
"""The `error` of the row of a purged dead letter."""

_LATEST_MS = np.iinfo(np.int64).max

_SPREAD = np.int64(-7046029254386353131)  # 2**64 / golden ratio, odd
_BITS = (1 << 64) - 1


# Some forty bytes for each of millions of deliveries. Ids are represented by 64-bit hashes: among a million of them two
# are equal once in thirty million audits; that audit would name one notification too many, and its rows would show
# that nothing is wrong.
def notification_key(notification: str) -> int:
    return hash(notification)


def delivery_key(notification: str, subscription: str) -> int:
    mixed = (hash(notification) * int(_SPREAD) + hash(subscription)) & _BITS
    return mixed - (1 << 64) if mixed >> 63 else mixed


class _Columns:
    """A data class of columns of the same length."""

    notification: Numbers

    def __len__(self) -> int:
        return len(self.notification)

    def __getitem__(self, rows: npt.NDArray[np.bool_] | Numbers) -> Self:
        return type(self)(*(column[rows] for column in vars(self).values()))


@dataclass
class DeliveryRows(_Columns):
    """Rows, or deliveries, by column."""

    key: Numbers
    notification: Numbers
    subscription: npt.NDArray[np.int32]
    state: npt.NDArray[np.int8]
    redriven: npt.NDArray[np.bool_]
    accepted_ms: Numbers
    delivered: npt.NDArray[np.int32]
    """How often a receiver has taken it."""
    by_batches: npt.NDArray[np.int32]
    """The number of its rows of batches; one, unless a batch was repeated or the log has the notification twice."""

    @staticmethod
    def joined(parts: Sequence[DeliveryRows]) -> DeliveryRows:
        return DeliveryRows(
            *(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(DeliveryRows))
        )


def numbering() -> defaultdict[str, int]:
    """A number for each text, from 0 on, assigned at its first use."""
    return defaultdict(count().__next__)


def columns(rows: Sequence[SlimRow], numbers: defaultdict[str, int]) -> DeliveryRows:
    notification = np.array([hash(row.notification) for row in rows], np.int64)
    subscription = np.array([hash(row.subscription) for row in rows], np.int64)
    state = np.array([_CODES[row.state] for row in rows], np.int8)
    errors = [row.error for row in rows]
    if PURGED_ERROR in errors:
        state[[error == PURGED_ERROR for error in errors]] = PURGED
    lapsed = [row.lapsed for row in rows]
    if True in lapsed:
        state[(state == EXPIRED) & lapsed] = LAPSED
    redriven = np.zeros(len(rows), np.bool_)
    if REDRIVEN in errors:
        redriven[:] = [error == REDRIVEN for error in errors]
    with np.errstate(over="ignore"):
        key = notification * _SPREAD + subscription
    return DeliveryRows(
        key=key,
        notification=notification,
        subscription=np.array([numbers[row.subscription] for row in rows], np.int32),
        state=state,
        redriven=redriven,
        accepted_ms=np.array([row.accepted_ms for row in rows], np.int64),
        delivered=(state == DELIVERED).astype(np.int32),
        by_batches=np.array([row.batch >= 0 for row in rows], np.int32),
    )


def settled(rows: DeliveryRows) -> DeliveryRows:
    """One entry per delivery: the result of its rows, in the order written.

    The first final row counts: a batch parks a delivery before it writes the row about it, and the redelivery may be
    quicker. Only the row of a redriven dead letter starts again. May be applied to its own result, followed by more
    rows.
    """
    if not len(rows):
        return rows
    order = np.argsort(rows.key, kind="stable")
    rows = rows[order]
    starts = np.flatnonzero(changes(rows.key))
    lengths = np.diff(np.append(starts, len(rows)))
    lives = np.cumsum(rows.redriven)
    last_life = np.repeat(lives[starts + lengths - 1], lengths)
    place = np.arange(len(rows), dtype=np.int64)
    rank = np.where(rows.state != PENDING, place + len(rows), place)
    rank[lives != last_life] = -1
    chosen = np.maximum.reduceat(rank, starts) % len(rows)
    result = rows[chosen]
    result.redriven = np.maximum.reduceat(rows.redriven, starts)
    result.delivered = np.add.reduceat(rows.delivered, starts)
    result.by_batches = np.add.reduceat(rows.by_batches, starts)
    # Redriven ones are accepted again; the delivery has the age of the notification.
    result.accepted_ms = np.minimum.reduceat(rows.accepted_ms, starts)
    return result


# Rows are converted to columns, and columns are reduced, in pieces of this number: memory is that of the deliveries,
# whatever the number of their tries.
_ROWS_AT_ONCE = 20_000

_REDUCE_AT = 4_000_000


@dataclass
class Evaluations(_Columns):
    """The evaluations of each position in the `notifications` log, one entry for each. `least` and `most` bound the
    number of deliveries.

    A batch that is repeated after a crash evaluates again, with the subscriptions of that time, and delivers to all
    recipients without a row: the last evaluation is the minimum. Rows of the earlier one remain, for subscriptions that
    ended in between: when the evaluations differ, the maximum is their sum.
    """

    notification: Numbers
    partition: Numbers
    offset: Numbers
    accepted_ms: Numbers
    control: Numbers
    batch: Numbers
    written_ms: Numbers
    topic: Numbers
    least: Numbers
    most: Numbers
    caused: Numbers
    """1 for a publication of a trigger."""
    priority: Numbers
    index: Numbers
    """The index of its id in `Ledger.ids`."""
    again: npt.NDArray[np.bool_]
    """Perhaps pushed before, with a lost row: evaluated again, or accepted before the beginning of its run."""


class Ledger:
    def __init__(self) -> None:
        self.numbers = numbering()
        self.topics = numbering()
        self.ids: list[str] = []
        self.rows = 0
        self.newest_batch = -1
        self._open: list[SlimRow] = []
        self._parts: list[DeliveryRows] = []
        self._unreduced = 0
        made_later = {"least", "most", "index", "again"}
        names = [each.name for each in fields(Evaluations) if each.name not in made_later]
        self._columns: dict[str, array[int]] = {name: array("q") for name in (*names, "count")}

    def add(self, value: bytes | None, written_ms: int = 0) -> None:
        """Add one record, in the order of its partition. Raises RecordVersionError."""
        record = readable(value)
        if record.attempts:
            self.rows += len(record.attempts)
            self._open += record.attempts
            if len(self._open) >= _ROWS_AT_ONCE:
                self._close_rows()
        if record.evaluation is not None:
            self._evaluate(record.evaluation, written_ms)

    def deliveries(self) -> DeliveryRows:
        self._close_rows()
        if not self._parts:
            self._parts = [columns([], self.numbers)]
        self._reduce()
        return self._parts[0]

    def evaluations(self) -> Evaluations:
        written = {name: np.array(values, np.int64) for name, values in self._columns.items()}
        order = np.lexsort((written["offset"], written["partition"]))  # stable: the last one written stays the last
        c = {name: values[order] for name, values in written.items()}
        counts, control = c.pop("count"), c["control"]
        starts = np.flatnonzero(changes(c["offset"], c["partition"]))
        evaluated = np.diff(np.append(starts, len(order)))
        last = starts + evaluated - 1
        greatest = np.maximum.reduceat(counts, starts)
        same = (np.minimum.reduceat(counts, starts) == greatest) & (
            np.minimum.reduceat(control, starts) == np.maximum.reduceat(control, starts)
        )
        most = np.where(same, greatest, np.add.reduceat(counts, starts))
        _, run = np.unique(c["batch"] // RUN_NUMBERS, return_inverse=True)
        began_ms = np.full(len(run), _LATEST_MS)
        np.minimum.at(began_ms, run, c["written_ms"])
        again = (evaluated > 1) | (c["accepted_ms"] < began_ms[run])[last]
        kept = {name: values[last] for name, values in c.items()}
        return Evaluations(**kept, least=counts[last], most=most, index=order[last], again=again)

    def _evaluate(self, evaluation: Evaluation, written_ms: int) -> None:
        matched = evaluation.matched
        size = len(matched)
        self.newest_batch = max(self.newest_batch, evaluation.batch)
        self.ids += [each.notification for each in matched]
        c = self._columns
        c["notification"].extend([notification_key(each.notification) for each in matched])
        c["partition"].extend([evaluation.partition] * size)
        c["offset"].extend([each.offset for each in matched])
        c["accepted_ms"].extend([each.accepted_ms for each in matched])
        c["count"].extend([each.subscriptions for each in matched])
        c["control"].extend([evaluation.control] * size)
        c["batch"].extend([evaluation.batch] * size)
        c["written_ms"].extend([written_ms] * size)
        c["topic"].extend([self.topics[each.topic] for each in matched])
        c["caused"].extend([each.caused for each in matched])
        c["priority"].extend([each.priority for each in matched])

    def _close_rows(self) -> None:
        if self._open:
            self._parts.append(columns(self._open, self.numbers))
            self._unreduced += len(self._open)
            self._open = []
            if self._unreduced >= _REDUCE_AT:
                self._reduce()

    def _reduce(self) -> None:
        self._parts = [settled(DeliveryRows.joined(self._parts))]
        self._unreduced = 0
