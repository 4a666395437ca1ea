"""The deep audit: all notifications are matched again as by the batches; and the stored messages are checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple

import numpy as np

from arborcast.core.eventlog.scan import LogScan, OffsetRange
from arborcast.core.eventlog.topics import CONTROL_HISTORY_MS
from arborcast.core.progress import Progress
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import CLOCKS_APART_MS, time_ms
from arborcast.dispatch.hot.intervals import Lane, lane_of
from arborcast.dispatch.logs import parked
from arborcast.dispatch.matching.filters import Conditions, matching_recipients
from arborcast.dispatch.operations.audit.balance import Balance, problem
from arborcast.dispatch.operations.audit.ledger import (
    DEAD,
    EXPIRED,
    PENDING,
    DeliveryRows,
    Evaluations,
    Ledger,
    Numbers,
    changes,
    delivery_key,
)
from arborcast.dispatch.operations.audit.report import Kind, Problem
from arborcast.topic_model.records import control as records
from arborcast.topic_model.records.control import ControlRecord
from arborcast.topic_model.records.notifications import Notification, notification_in
from arborcast.topic_model.routing import History, RoutingTable
from arborcast.topic_model.subscriptions import Subscription

_RETRY_S = 0.5


class _Store(NamedTuple):
    """A compacted log, and the states of the deliveries that must be in it."""

    log: Literal["parked", "dead"]
    kind: Kind
    states: tuple[int, ...]


_KEEPERS = (
    _Store("parked", "not-parked", (PENDING,)),
    _Store("dead", "no-letter", (DEAD, EXPIRED)),
)


@dataclass(frozen=True)
class DeepAudit:
    """Adds findings to the report of a balance, of which the first `limit` are named. `log` has the notifications;
    `read_new` reads new records of the attempts log into the ledger."""

    kafka: KafkaSettings
    log: LogScan
    ledger: Ledger
    found: Balance
    read_new: Callable[[], None]
    patience_s: float
    limit: int
    progress: Progress

    def examine(self) -> None:
        """Raises as `audit`."""
        report, evaluations = self.found.report, self.found.evaluations
        report.deep = True
        old = int((evaluations.written_ms < time_ms() - CONTROL_HISTORY_MS).sum())
        if old:
            report.notes.append(
                f"{old} notifications were evaluated more than a day ago. The control log's history before that is "
                "compacted: deliveries to subscriptions that have ended or changed since cannot be checked"
            )
        begin = self.log.beginnings()
        deleted = sum(int((evaluations.offset[evaluations.partition == each] < at).sum()) for each, at in begin.items())
        if deleted:
            report.notes.append(
                f"{deleted} notifications are deleted from the notifications log, by an erasure or by their age: they "
                "were counted, but not matched again"
            )
        report.add_problems(*self._not_delivered(begin), self.limit)
        self._check_stored()

    def _not_delivered(self, begin: Mapping[int, int]) -> tuple[list[Problem], int]:
        """Missing deliveries: up to `limit` of them, and their number. `begin` are the first offsets of the log."""
        evaluations, since_ms = self.found.evaluations, self.found.report.since_ms
        deliveries = np.sort(self.ledger.deliveries().key)
        conditions = Conditions()
        problems: list[Problem] = []
        count = examined = 0
        with LogScan(self.kafka, "control") as control:
            past, spacing = _PastRouting(control, since_ms), _Spacing(since_ms)
            for as_of, runs in groupby(_runs(evaluations), key=lambda run: run.control):
                past.advance(as_of)
                recipients = past.table.recipients()
                for notification, at in _notifications(self.log, begin, runs):
                    examined += 1
                    self.progress("matching again", examined, len(evaluations))
                    active, ended = matching_recipients(recipients, conditions, notification)
                    recipients_then = [*active, *ended]
                    missing = _without(deliveries, notification.id, [each.id for each in recipients_then])
                    if any(each.policy.interval_ms for each in recipients_then):
                        excused = spacing.excused(
                            notification, int(evaluations.partition[at]), recipients_then, set(missing)
                        )
                        recipients_then = [each for each in recipients_then if each.id not in excused]
                        missing = [each for each in missing if each not in excused]
                    count += len(missing)
                    matched, found = len(recipients_then), len(recipients_then) - len(missing)
                    problems += [
                        problem("not-delivered", self.ledger, evaluations, at, matched, found, subscription)
                        for subscription in missing[: self.limit - len(problems)]
                    ]
        return problems, count

    def _check_stored(self) -> None:
        """The deliveries of the interval whose message must be stored and is missing. A busy engine ends deliveries
        while the log is read, and an outcome is in the attempts log before the message is removed: so the states of
        missing ones are read after the log, and those without an outcome are looked up again for some seconds."""
        for store in _KEEPERS:
            deadline = time.monotonic() + self.patience_s
            lacking = self._stored_in(store)
            while True:
                lacking = self._lacking(store, lacking)
                if len(lacking):
                    self.read_new()
                    current = self._stored_in(store)
                    lacking = current[np.isin(current.key, lacking.key)]
                if not len(lacking) or time.monotonic() > deadline:
                    break
                time.sleep(_RETRY_S)
            self.found.report.add_problems(self._problems(store.kind, lacking), len(lacking), self.limit)

    def _stored_in(self, store: _Store) -> DeliveryRows:
        """The deliveries of the interval that must be in this log."""
        deliveries = self.ledger.deliveries()
        inside = np.isin(deliveries.notification, self.found.evaluations.notification)
        return deliveries[inside & np.isin(deliveries.state, store.states)]

    def _lacking(self, store: _Store, deliveries: DeliveryRows) -> DeliveryRows:
        """The deliveries that are not in the log. Memory is that of these deliveries, not of the log."""
        if not len(deliveries):
            return deliveries
        keys = set(deliveries.key.tolist())
        entries: dict[bytes, int] = {}
        decode = parked.readable if store.log == "parked" else parked.readable_letter
        with LogScan(self.kafka, store.log, progress=self.progress) as log:
            for record in log.read_all():
                found = decode(record.key, record.value, (record.partition, record.offset))
                if found is None or isinstance(found[-1], parked.Tried):
                    continue
                if found[-1] is None:
                    entries.pop(record.key, None)
                    continue
                key = delivery_key(found[-1].notification.id, found[0].subscription)
                if key in keys:
                    entries[record.key] = key
        stored = np.fromiter(set(entries.values()), np.int64)
        return deliveries[~np.isin(deliveries.key, stored)]

    def _problems(self, kind: Kind, lacking: DeliveryRows) -> list[Problem]:
        subscriptions, evaluations = list(self.ledger.numbers), self.found.evaluations
        problems = []
        for row in range(min(self.limit, len(lacking))):
            at = int(np.flatnonzero(evaluations.notification == lacking.notification[row])[0])
            who = subscriptions[lacking.subscription[row]]
            problems.append(problem(kind, self.ledger, evaluations, at, who=who))
        return problems


class _Run(NamedTuple):
    """Consecutive places of one partition, evaluated as of one offset of the control log; `at` is the index of the
    first among the evaluations."""

    control: int
    partition: int
    first: int
    length: int
    at: int


class _PastRouting:
    """The routing table of the past, moving forward, with the changes since the first acceptance."""

    def __init__(self, control: LogScan, since_ms: int) -> None:
        (partition,) = control.beginnings()
        horizon = control.at(since_ms - CLOCKS_APART_MS)[partition]
        self.table = RoutingTable(remembered_answers=100_000, history=History(horizon))
        stretch = OffsetRange(control.beginnings()[partition], control.ends()[partition])
        self._records = control.read({partition: stretch})
        self._next: tuple[int, ControlRecord] | None = None

    def advance(self, control: int) -> None:
        """Apply the records before this offset."""
        while True:
            if self._next is None:
                record = next(self._records, None)
                if record is None:
                    return
                self._next = (record.offset, records.decode(record.key, record.value))
            offset, change = self._next
            if offset >= control:
                return
            self.table.apply(change, offset)
            self._next = None


class _Spacing:
    """Excuses missing deliveries within a subscription's minimum interval, which begins at its previous delivery; the
    first interval begins with the audit."""

    def __init__(self, since_ms: int) -> None:
        self._since_ms = since_ms
        self._until_ms: dict[tuple[int, Lane], int] = {}

    def excused(
        self,
        notification: Notification,
        partition: int,
        keys: Sequence[Subscription],
        missing: Collection[str],
    ) -> set[str]:
        """The missing ones within an interval. Must be called in the order of each partition."""
        excused: set[str] = set()
        for each in keys:
            interval_ms = each.policy.interval_ms
            if not interval_ms or notification.only:
                continue
            lane = partition, lane_of(each.id, each.policy, notification.topic)
            if each.id not in missing:
                self._until_ms[lane] = notification.accepted_ms + interval_ms
            elif notification.accepted_ms < self._until_ms.get(lane, self._since_ms + interval_ms):
                excused.add(each.id)
        return excused


def _without(deliveries: Numbers, notification: str, subscriptions: list[str]) -> list[str]:
    """The subscriptions without a delivery of this notification, by the sorted keys of all deliveries."""
    if not len(deliveries):
        return subscriptions
    keys = np.array([delivery_key(notification, each) for each in subscriptions], np.int64)
    at = np.minimum(np.searchsorted(deliveries, keys), len(deliveries) - 1)
    active = deliveries[at] == keys
    return [each for each, known in zip(subscriptions, active.tolist(), strict=True) if not known]


def _runs(evaluations: Evaluations) -> Iterator[_Run]:
    """In the order of the control log, so that it is folded once."""
    order = np.lexsort((evaluations.offset, evaluations.partition, evaluations.control))
    control, partition, offset = (
        column[order] for column in (evaluations.control, evaluations.partition, evaluations.offset)
    )
    # Evaluations are sorted by place, so a run is a slice of them, too.
    starts = np.flatnonzero(changes(control, partition, offset - np.arange(len(order))))
    lengths = np.diff(np.append(starts, len(order)))
    columns = (control[starts], partition[starts], offset[starts], lengths, order[starts])
    for run in zip(*(each.tolist() for each in columns), strict=True):
        yield _Run(*run)


def _notifications(log: LogScan, begin: Mapping[int, int], runs: Iterable[_Run]) -> Iterator[tuple[Notification, int]]:
    """The notifications of these runs, with their index among the evaluations; without damaged ones, which no batch can
    read."""
    for run in runs:
        first = max(run.first, begin[run.partition])
        for record in log.read({run.partition: OffsetRange(first, run.first + run.length)}):
            notification = notification_in(record)
            if notification is not None:
                yield notification, run.at + record.offset - run.first
