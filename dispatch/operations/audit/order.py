"""The order of pushes: first attempts in the order of acceptance, strict subscriptions across retries; and pushes after
the end of their delivery.

The log has the rows in the order in which outcomes were written, not in that of the pushes. Each sender (a worker, a
session of the redelivery) numbers its pushes as they begin, so pushes of one sender are compared by number. Pushes of
two senders are compared by clock and by log: a clock may be put back, and a row may wait for the record of its message.
A crash loses the last rows of its process, so an order that depends on such rows is not judged.

Rows are stored in temporary files, each of some lanes, and one file is examined at a time: memory is that of the
evaluations and of one file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from arborcast.core.eventlog.client import ConsumerRecord
from arborcast.core.eventlog.damaged import unless_damaged
from arborcast.core.eventlog.scan import LogScan
from arborcast.core.settings import KafkaSettings
from arborcast.core.versions import Versioned, VersionedCodec
from arborcast.core.wall_clock import CLOCKS_APART_MS
from arborcast.dispatch.logs.attempts import FINAL, VERSION, State
from arborcast.dispatch.operations.audit.balance import problem
from arborcast.dispatch.operations.audit.ledger import (
    REDRIVEN,
    Evaluations,
    Ledger,
    Numbers,
    changes,
    notification_key,
    numbering,
)
from arborcast.dispatch.operations.audit.report import Kind, Problem, Report
from arborcast.topic_model.records import control as records
from arborcast.topic_model.records.control import SubscriptionRecord, TriggerRecord
from arborcast.topic_model.subscriptions import Subscription, queue_topic


class _Row(msgspec.Struct, frozen=True, gc=False):
    """The fields of an Attempt that show its time and order."""

    notification: str
    subscription: str
    number: int
    push: str
    state: State
    started_ms: int
    error: str = ""


class _Record(Versioned, frozen=True, gc=False):
    attempts: list[_Row]


_decode = VersionedCodec(_Record, "an attempts record", VERSION).decode

BY_PRIORITY, STRICT, UNORDERED = range(3)
"""The order of a subscription: first attempts within each priority; one message settled before the next is pushed; none
for servers of queues, and for triggers, which push nothing. Timely subscriptions ignore priorities except for reliable
messages, which rows do not distinguish: theirs is checked within each priority, too."""

# Flags of a row: the first attempt of its delivery; a push; the end of its delivery; a redrive.
_FIRST, _PUSH, _END, _REDRIVE = 1, 2, 4, 8

_ROW = np.dtype(
    [
        ("subscription", "i4"),
        ("place", "i4"),  # the index of its evaluation; evaluations are sorted by partition and offset
        ("log", "i2"),  # the partition of the attempts log
        ("at", "i8"),  # and the offset there
        ("sender", "i4"),
        ("push", "i4"),  # its number of this sender
        ("started_ms", "i8"),
        ("written_ms", "i8"),
        ("kind", "i1"),
    ]
)

_Rows = npt.NDArray[np.void]

# A million rows have 43 MB. With a hundred million a file has 67 MB.
_FILES = 64

_ROWS_AT_ONCE = 20_000

# Rows of a process are in the log soon after the outcomes; a sender with rows this much later has lost none.
_LOST_MS = 5_000

# Limit of later messages in its lane to which a push of another sender is compared.
_LATER = 10_000

_NONE = np.iinfo(np.int64).max


def order_of(subscription: Subscription) -> int:
    if subscription.queue or subscription.trigger is not None:
        return UNORDERED
    return STRICT if subscription.policy.strict else BY_PRIORITY


def orders_in(kafka: KafkaSettings) -> dict[str, int]:
    """The order of each subscription in the control log, by id. Raises InfrastructureError, RecordVersionError."""
    found: dict[str, int] = {}
    with LogScan(kafka, "control") as control:
        for each in control.read_all():
            change = records.decode(each.key, each.value)
            if isinstance(change, SubscriptionRecord | TriggerRecord):
                found[change.subscription.id] = order_of(change.subscription)
    return found


class OrderCheck:
    """The rows of an interval, and the findings. `orders` are those of the subscriptions. Must be closed."""

    def __init__(self, ledger: Ledger, evaluations: Evaluations, orders: Mapping[str, int]) -> None:
        self._ledger, self._evaluations, self._orders = ledger, evaluations, orders
        keys, first, counts = np.unique(evaluations.notification, return_index=True, return_counts=True)
        # A current message is sent again under its id: rows do not distinguish its places.
        self._keys, self._places = keys[counts == 1], first[counts == 1]
        self._senders = numbering()
        # By sender: the start of its last push, and its last row.
        self._times_ms: dict[int, tuple[int, int]] = {}
        self._folder = TemporaryDirectory(prefix="arborcast-audit-")
        self._files = [Path(self._folder.name) / str(number) for number in range(_FILES)]
        self._open: list[tuple[ConsumerRecord, _Row]] = []

    def close(self) -> None:
        self._folder.cleanup()

    def add(self, record: ConsumerRecord) -> None:
        """Add a record of the attempts log, in the order of its partition. Raises RecordVersionError."""
        batch = unless_damaged("attempts", (record.partition, record.offset), _decode, record.value)
        for row in () if batch is None else batch.attempts:
            if row.push or row.state in FINAL or row.error == REDRIVEN:
                self._open.append((record, row))
        if len(self._open) >= _ROWS_AT_ONCE:
            self._store()

    def report(self, report: Report, limit: int) -> None:
        self._store()
        report.order = True
        unknown = sum(name not in self._orders and queue_topic(name) is None for name in self._ledger.numbers)
        if unknown:
            report.notes.append(
                f"{unknown} subscriptions are not in the control log any more: of strict ones among them only the "
                "order of first attempts was checked"
            )
        names = list(self._ledger.numbers)
        known = (self._orders.get(name, UNORDERED if queue_topic(name) is not None else BY_PRIORITY) for name in names)
        orders = np.fromiter(known, np.int8)
        times_ms = np.array([self._times_ms[each] for each in range(len(self._senders))], np.int64).reshape(-1, 2)
        for file in self._files:
            rows = np.fromfile(file, _ROW) if file.exists() else np.zeros(0, _ROW)
            deliveries = _deliveries(rows, self._evaluations, orders, times_ms)
            late, undecided = _overtaken(deliveries, times_ms, self._evaluations.again)
            report.first_attempts += int(deliveries.first_is.sum())
            report.disordered += len(late)
            report.undecided += undecided
            again = np.flatnonzero(deliveries.repeated)
            kinds: list[tuple[int, Kind]] = [(at, "repeated") for at in again[:limit].tolist()]
            for at in late[:limit].tolist():
                strict = orders[deliveries.subscription[at]] == STRICT
                kinds.append((at, "out-of-turn" if strict else "out-of-order"))
            found = [self._problem(deliveries, at, kind, names) for at, kind in kinds]
            report.add_problems(found, len(late) + len(again), limit)
        if report.undecided:
            report.notes.append(
                f"{report.undecided} first attempts may be repetitions of attempts whose rows were lost in a crash: "
                "their order cannot be checked"
            )

    def _problem(self, deliveries: _Deliveries, at: int, kind: Kind, names: list[str]) -> Problem:
        who, place = names[deliveries.subscription[at]], int(deliveries.place[at])
        return problem(kind, self._ledger, self._evaluations, place, who=who)

    def _store(self) -> None:
        """Append the rows to the files of their lanes."""
        some, self._open = self._open, []
        rows = np.zeros(len(some), _ROW)
        keys = np.array([notification_key(row.notification) for _, row in some], np.int64)
        if not len(keys) or not len(self._keys):
            return
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        pushes = [_sender(row.push) for _, row in some]
        numbers = self._ledger.numbers
        rows["subscription"] = [numbers[row.subscription] for _, row in some]
        rows["place"] = self._places[at]
        rows["log"] = [record.partition for record, _ in some]
        rows["at"] = [record.offset for record, _ in some]
        rows["sender"] = [self._senders[sender] if sender else -1 for sender, _ in pushes]
        rows["push"] = [number for _, number in pushes]
        rows["started_ms"] = [row.started_ms for _, row in some]
        rows["written_ms"] = [record.timestamp for record, _ in some]
        rows["kind"] = [_kind(row) for _, row in some]
        for sender in np.unique(rows["sender"][rows["sender"] >= 0]).tolist():
            its = rows[rows["sender"] == sender]
            last, written = self._times_ms.get(sender, (0, 0))
            self._times_ms[sender] = (
                max(last, int(its["started_ms"].max())),
                max(written, int(its["written_ms"].max())),
            )
        rows = rows[self._keys[at] == keys]
        file = (rows["subscription"].astype(np.int64) * 31 + self._evaluations.topic[rows["place"]]) % _FILES
        order = np.argsort(file, kind="stable")
        bounds = np.searchsorted(file[order], np.arange(_FILES + 1))
        for number in np.unique(file).tolist():
            with self._files[number].open("ab") as opened:
                opened.write(rows[order[bounds[number] : bounds[number + 1]]].tobytes())


def _sender(push: str) -> tuple[str, int]:
    """The sender of a push, and the push's number there."""
    sender, _, number = push.rpartition("-")
    return (sender, int(number)) if sender and number.isdecimal() else (push, 0)


def _kind(row: _Row) -> int:
    pushed = bool(row.push)
    # Its turn ended with its validity, which may be long before this row.
    lapsed = row.state == "expired" and not row.number
    return (
        _FIRST * (pushed and row.number == 1)
        + _PUSH * pushed
        + _END * (row.state in FINAL and not lapsed)
        + _REDRIVE * (row.error == REDRIVEN)
    )


class _Deliveries(NamedTuple):
    """Deliveries, sorted by lane and acceptance. Each has its first attempt, if `first_is`, and the row up to which no
    later one may be pushed, if `until_is`: the first attempt again, or in strict order the end. `repeated`: pushed
    again long after its end was in the log, although the process that ended it was running."""

    lane: Numbers
    subscription: Numbers
    place: Numbers
    first: _Rows
    first_is: npt.NDArray[np.bool_]
    until: _Rows
    until_is: npt.NDArray[np.bool_]
    repeated: npt.NDArray[np.bool_]


def _deliveries(rows: _Rows, evaluations: Evaluations, orders: npt.NDArray[np.int8], times_ms: Numbers) -> _Deliveries:
    if len(rows):
        rows = rows[orders[rows["subscription"]] != UNORDERED]
    rows = rows[np.lexsort((rows["place"], rows["log"], rows["subscription"]))]  # stable: by log, within a delivery
    starts = np.flatnonzero(changes(rows["subscription"], rows["log"], rows["place"]))
    index = np.arange(len(rows), dtype=np.int64)

    def first_of(mask: npt.NDArray[np.bool_]) -> Numbers:
        return np.minimum.reduceat(np.where(mask, index, _NONE), starts) if len(starts) else starts

    kind = rows["kind"]
    redrive = first_of((kind & _REDRIVE) != 0)
    kind = np.where(index < np.repeat(redrive, np.diff(np.append(starts, len(rows)))), kind, 0)
    first, end = first_of((kind & _FIRST) != 0), first_of((kind & _END) != 0)
    last = np.maximum.reduceat(np.where((kind & _PUSH) != 0, index, -1), starts) if len(starts) else starts
    over, newest = rows[np.where(end != _NONE, end, 0)], rows[np.maximum(last, 0)]
    since_ms = np.maximum(over["started_ms"], over["written_ms"])
    repeated = (end != _NONE) & (last > end) & (newest["started_ms"] - since_ms > CLOCKS_APART_MS)
    repeated &= (over["sender"] >= 0) & _wrote_later(over, times_ms)
    heads = rows[starts]
    strict = orders[heads["subscription"]] == STRICT
    until = np.where(strict, np.where(end != _NONE, end, np.where(last >= 0, last, _NONE)), first)
    place = heads["place"].astype(np.int64)
    ranked = orders[heads["subscription"]] == BY_PRIORITY
    keys = (
        np.where(ranked, evaluations.priority[place], 0),
        evaluations.topic[place],
        evaluations.partition[place],
        heads["log"],
        heads["subscription"],
    )
    by_lane = np.lexsort((place, *keys))
    lane = np.cumsum(changes(*(key[by_lane] for key in keys)), dtype=np.int64)

    def at(chosen: Numbers) -> tuple[_Rows, npt.NDArray[np.bool_]]:
        present = chosen[by_lane]
        return rows[np.where(present != _NONE, present, 0)], present != _NONE

    subscription, repeated = heads["subscription"][by_lane], repeated[by_lane]
    return _Deliveries(lane, subscription, place[by_lane], *at(first), *at(until), repeated)


def _overtaken(them: _Deliveries, times_ms: Numbers, again: npt.NDArray[np.bool_]) -> tuple[Numbers, int]:
    """The deliveries behind a later one of their lane, and the number of those that cannot be decided. `again`: by
    place, see `Evaluations`."""
    late = _behind_its_sender(them)
    candidates = _behind(them, "started_ms") & _behind(them, "at") & ~late
    undecided = 0
    ends = np.searchsorted(them.lane, them.lane, side="right")
    for at in np.flatnonzero(candidates).tolist():
        later = slice(at + 1, min(int(ends[at]), at + 1 + _LATER))
        first, until = them.first[later], them.until[at]
        before = them.first_is[later] & (first["sender"] != until["sender"])
        before &= (first["started_ms"] < until["started_ms"]) & (first["at"] < until["at"])
        if not before.any():
            continue
        overtaking = first[before]
        late[at] = _wrote_later(overtaking, times_ms).any() and not _after_a_crash(them, at, overtaking, times_ms)
        undecided += not late[at]
    lost = late & again[them.place]
    return np.flatnonzero(late & ~lost), undecided + int(lost.sum())


def _after_a_crash(them: _Deliveries, at: int, overtaking: _Rows, times_ms: Numbers) -> bool:
    """Whether an earlier sender of the lane may have pushed this delivery, too, and lost the row: the last rows of the
    last one are before the pushes of all later ones, or those of any are of that time."""
    begin = max(int(np.searchsorted(them.lane, them.lane[at])), at - _LATER)
    earlier = them.first["sender"][begin:at]
    others = earlier[them.first_is[begin:at] & (earlier != them.until["sender"][at])]
    after_ms = overtaking["started_ms"].min() - times_ms[others, 1]
    return len(others) > 0 and bool(after_ms[-1] > -_LOST_MS or (np.abs(after_ms) <= _LOST_MS).any())


def _wrote_later(rows: _Rows, times_ms: Numbers) -> npt.NDArray[np.bool_]:
    """Whether the senders of these rows have written later ones: then none before them is lost."""
    if not len(rows):
        return np.zeros(0, np.bool_)
    last = times_ms[rows["sender"]]
    later: npt.NDArray[np.bool_] = (last[:, 0] - rows["started_ms"] > _LOST_MS) & (
        last[:, 1] - rows["written_ms"] > _LOST_MS
    )
    return later


def _behind(them: _Deliveries, column: str) -> npt.NDArray[np.bool_]:
    """The deliveries with a later one of their lane whose first attempt has a smaller value."""
    return _after_later(
        them.lane, them.place, them.first[column], them.first_is, them.until[column], them.until_is, len(them.lane)
    )


def _behind_its_sender(them: _Deliveries) -> npt.NDArray[np.bool_]:
    """The same by the push numbers of one sender: a lane has a part for each sender."""
    firsts, untils = np.flatnonzero(them.first_is), np.flatnonzero(them.until_is & (them.until["sender"] >= 0))
    both = np.concatenate((firsts, untils))
    is_first = np.arange(len(both)) < len(firsts)
    sender = np.concatenate((them.first["sender"][firsts], them.until["sender"][untils]))
    number = np.concatenate((them.first["push"][firsts], them.until["push"][untils]))
    order = np.lexsort((them.place[both], sender, them.lane[both]))
    both, is_first, number = both[order], is_first[order], number[order]
    part = np.cumsum(changes(them.lane[both], sender[order]), dtype=np.int64)
    found = _after_later(part, them.place[both], number, is_first, number, ~is_first, len(both))
    result = np.zeros(len(them.lane), np.bool_)
    result[both[found]] = True
    return result


def _after_later(
    part: Numbers,
    place: Numbers,
    first: Numbers,
    first_is: npt.NDArray[np.bool_],
    until: Numbers,
    until_is: npt.NDArray[np.bool_],
    size: int,
) -> npt.NDArray[np.bool_]:
    """Whether, within the same part, an entry with a larger place has a `first` below this one's `until`. Entries are
    sorted by part and place."""
    found = np.zeros(size, np.bool_)
    if not first_is.any():
        return found
    # The smallest `first` from each entry on: a running maximum from the end, with a level for each part.
    least, most = int(first[first_is].min()), int(first[first_is].max())
    level = (most - least + 2) * (int(part[-1]) - part[::-1])
    height = np.where(first_is, most - first + 1, 0)[::-1]
    running = (np.maximum.accumulate(level + height) - level)[::-1]
    # Only of entries with a larger place.
    begins = changes(part, place)
    next_place = np.append(np.flatnonzero(begins), size)[np.cumsum(begins)]
    present = (next_place < size) & until_is
    present &= part[np.minimum(next_place, size - 1)] == part
    smallest = running[np.minimum(next_place, size - 1)]
    found[present] = (smallest[present] > 0) & (until[present] > most + 1 - smallest[present])
    return found
