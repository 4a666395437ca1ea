"""The audit of a running engine."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

from arborcast.core.eventlog.client import ConsumerRecord
from arborcast.core.eventlog.scan import LogScan, OffsetRange
from arborcast.core.progress import Progress, no_progress
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import CLOCKS_APART_MS, time_ms
from arborcast.dispatch.operations.audit.balance import Balance, balance
from arborcast.dispatch.operations.audit.deep import DeepAudit
from arborcast.dispatch.operations.audit.ledger import Ledger, notification_key, readable
from arborcast.dispatch.operations.audit.order import OrderCheck, orders_in
from arborcast.dispatch.operations.audit.report import MAX_PROBLEMS, Problem, Report
from arborcast.topic_model.records.notifications import notification_in

_RETRY_S = 0.5


def audit(
    kafka: KafkaSettings,
    since_ms: int,
    until_ms: int | None = None,
    *,
    deep: bool = False,
    order: bool = False,
    patience_s: float = 15.0,
    limit: int = MAX_PROBLEMS,
    progress: Progress = no_progress,
) -> Report:
    """Examine the notifications accepted from `since_ms` on and before `until_ms` (default: now).

    The engine may be running: an imbalance is examined again for up to `patience_s` seconds, because a batch records a
    notification's number of deliveries before their outcomes; and for a fifth of that while notifications are not
    matched. `limit` is the maximum number of named problems. Raises InfrastructureError if Kafka cannot be read,
    RecordVersionError if a newer Arborcast wrote its logs.
    """
    started = time.monotonic()
    with ExitStack() as stack:
        attempts = stack.enter_context(LogScan(kafka, "attempts", progress=progress))
        log = stack.enter_context(LogScan(kafka, "notifications"))
        examination = _Examination(attempts, log, since_ms, until_ms, limit)
        found = examination.compare()
        began = time.monotonic()
        while time.monotonic() < began + _patience_s(found, patience_s):
            time.sleep(_RETRY_S)
            found = examination.compare()
        report = found.report
        examination.name_gaps(found)
        examination.name_unmatched(report)
        report.notes += examination.notes
        if deep:
            read_new = examination.read_new
            DeepAudit(kafka, log, examination.ledger, found, read_new, patience_s, limit, progress).examine()
        if order:
            with closing(OrderCheck(examination.ledger, found.evaluations, orders_in(kafka))) as check:
                for record in examination.records():
                    check.add(record)
                check.report(report, limit)
    report.seconds = round(time.monotonic() - started, 3)
    return report


def _patience_s(found: Balance, patience_s: float) -> float:
    """How long an imbalance is examined again. Unmatched notifications may be a backlog; a recent one may be delivered
    already, with its records still to be written."""
    if found.report.unbalanced or found.gap_count:
        return patience_s
    return patience_s / 5 if found.report.waiting else 0.0


class _Examination:
    def __init__(self, attempts: LogScan, log: LogScan, since_ms: int, until_ms: int | None, limit: int) -> None:
        self._attempts = attempts
        self._log = log
        self._since_ms = since_ms
        self._limit = limit
        self.notes: list[str] = []
        self.ledger = Ledger()
        # The present is after every acceptance of this millisecond.
        self._until_ms = until_ms if until_ms is not None else time_ms() + 1
        self._begin = attempts.at(since_ms - CLOCKS_APART_MS)
        self._next = dict(self._begin)
        self._limit_to_log()
        first = log.at(self._since_ms)
        ends = log.ends() if until_ms is None else log.at(until_ms)
        self._stretches = {number: OffsetRange(first[number], ends[number]) for number in first}

    def compare(self) -> Balance:
        self.read_new()
        return balance(self.ledger, self._since_ms, self._until_ms, self._stretches, self._limit)

    def read_new(self) -> None:
        ends = self._attempts.ends()
        for record in self._attempts.read_from(self._next, ends):
            self.ledger.add(record.value, record.timestamp)
        self._next = ends

    def records(self) -> Iterator[ConsumerRecord]:
        """Read the same records again."""
        return self._attempts.read_from(self._begin, self._next)

    def name_gaps(self, found: Balance) -> None:
        """Report the unevaluated notifications."""
        problems = []
        for partition, offset in found.gaps:
            problem = Problem("unreadable", "", partition=partition, offset=offset)
            for record in self._log.read({partition: OffsetRange(offset, offset + 1)}):
                notification = notification_in(record)
                if notification is None:
                    continue
                problem = dataclasses.replace(
                    problem,
                    kind="unevaluated",
                    notification=notification.id,
                    topic=notification.topic,
                    accepted_ms=notification.accepted_ms,
                )
            problems.append(problem)
        found.report.add_problems(problems, found.gap_count, self._limit)

    def name_unmatched(self, report: Report) -> None:
        """Look up the ids of deliveries without an evaluation: only their hashes are stored."""
        keys = {int(each.notification) for each in report.problems if each.kind == "unmatched"}
        if not keys:
            return
        names: dict[int, str] = {}
        for record in self.records():
            for row in readable(record.value).attempts:
                key = notification_key(row.notification)
                if key in keys:
                    names[key] = row.notification
            if len(names) == len(keys):
                break
        report.problems = [
            dataclasses.replace(each, notification=names.get(int(each.notification), each.notification))
            if each.kind == "unmatched"
            else each
            for each in report.problems
        ]

    def _limit_to_log(self) -> None:
        """Limit the interval to the records that the log still has."""
        beginnings = self._attempts.beginnings()
        cut = {number: at for number, at in beginnings.items() if at > 0 and at == self._begin[number]}
        first_ms = [record.timestamp for record in self._attempts.first_behind(cut)]
        since_ms = max([self._since_ms, *(each + CLOCKS_APART_MS for each in first_ms)])
        if since_ms > self._since_ms:
            self.notes.append(
                f"the attempts log no longer has the whole period: examined from {since_ms} ms since the epoch"
            )
            self._since_ms = since_ms
