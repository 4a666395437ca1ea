"""Collects the records of a notification: from the tables, and from the ends of the logs, because the tables are some
seconds behind them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import ConsumerRecord
from arborcast.core.eventlog.damaged import unless_damaged
from arborcast.core.eventlog.scan import LogScan
from arborcast.core.eventlog.topics import PULL_LOG
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs import attempts
from arborcast.dispatch.logs.attempts import Attempt, erased_by
from arborcast.dispatch.operations.trace.evidence import (
    ControlHistory,
    Evidence,
    MatchedBy,
    Progress,
    Row,
    Step,
    utc,
)
from arborcast.dispatch.realtime.messages import read_progress
from arborcast.dispatch.settings import TableSettings
from arborcast.dispatch.tables import ATTEMPTS, ENDPOINT_HEALTH, NOTIFICATIONS, RETRIES, SUBSCRIPTIONS
from arborcast.dispatch.tables.spec import TableSpec, newest, open_table, rows_with, table_exists
from arborcast.topic_model.records import control as records
from arborcast.topic_model.records import notifications, pull
from arborcast.topic_model.records.notifications import Notification, made_at
from arborcast.topic_model.records.pull import ERASED, Claimed, Returned, Settled, StoredMessage

# Rows are in the log in the order of the pushes' ends, not beginnings: the table may lack some that began within this
# time before its newest one.
_OVERLAP_MS = 60_000

# Difference between a gateway's clock and the broker's, with the wait of an accepted notification for the broker.
_CLOCKS_MS = 5_000

_APPEND_MS = 60_000

# A trace must be quick: if the tables are hours behind it reports the delay instead.
_MOST_RECORDS = 300_000

_MOST_SECONDS = 20.0

_MOST_PULLED = 100_000


@dataclass(frozen=True)
class Gatherer:
    """The sources of a trace. `unavailable` is the known reason why the logs cannot be read; empty if unknown."""

    kafka: KafkaSettings
    tables: TableSettings
    home: Path
    unavailable: str = ""

    def gather(self, notification_id: str, subscription: str | None = None) -> Evidence:
        """All records of a notification, and of a requested subscription. Unavailable sources are noted; they raise
        nothing."""
        notes: list[str] = []
        found = self._archived(notification_id, notes)
        rows: list[Row] = list(self._rows(ATTEMPTS, notification_id, notes))
        waiting = {row["subscription"]: row["due_at"] for row in self._rows(RETRIES, notification_id, notes)}
        control, evaluated, progress = ControlHistory(), None, None
        pulled: Mapping[str, Step] = {}
        try:
            if self.unavailable:
                raise InfrastructureError(self.unavailable)
            for record in self._log("control", 0, notes, _MOST_RECORDS * 10):
                control.add(records.decode(record.key, record.value), record.timestamp, record.offset)
            if found.notification is None:
                found = self._from_log(notification_id, notes) or found
            recent, evaluated = self._recent(notification_id, notes)
            rows = _together(rows, recent)
            if evaluated is None and found.logged_ms:
                evaluated = self._evaluated(found, rows)
            if evaluated is not None and evaluated.thinned:
                found = replace(found, instead=self._instead(found, control, rows, notes))
            progress = self._progress(found)
            pulled = self._pulled(notification_id, control, rows, notes)
        except InfrastructureError as error:
            notes.append(f"the logs could not be read, so the last seconds are missing: {error}")
        names = {str(row["subscription"]) for row in rows} | ({subscription} if subscription else set())
        forgotten = self._rows_with(SUBSCRIPTIONS, "subscription", sorted(names - control.states.keys()))
        return replace(
            found,
            control=control,
            progress=progress,
            evaluated=evaluated,
            attempts=rows,
            waiting=waiting,
            pulled=pulled,
            forgotten={row["subscription"]: row for row in forgotten},
            endpoints=self._health({str(row["endpoint"]) for row in rows if row["state"] == "parked"}),
            notes=notes,
            now=datetime.now(UTC),
        )

    def _progress(self, found: Evidence) -> Progress | None:
        """The progress of the dispatch; None if the offset is unknown, or nothing was dispatched yet."""
        known = read_progress(self.kafka).get(found.partition) if found.offset >= 0 else None
        if known is None:
            return None
        if found.offset < known.position:
            return "settled"
        return "matched" if found.offset < known.taken else "waits"

    def _pulled(
        self, notification_id: str, control: ControlHistory, rows: Sequence[Row], notes: list[str]
    ) -> Mapping[str, Step]:
        """Its last steps in pull points, as far as the log still has them."""
        pulling = {name for name in control.states if (last := control.last(name)) is not None and last.pull_point}
        stored = [_milliseconds(row["started_at"]) for row in rows if row["subscription"] in pulling]
        if not stored:
            return {}
        log = self._log(PULL_LOG, min(stored) - _CLOCKS_MS, notes, _MOST_PULLED)
        return in_pull_points(log, notification_id, max(stored) + _APPEND_MS)

    def _archived(self, notification_id: str, notes: list[str]) -> Evidence:
        rows = self._rows(NOTIFICATIONS, notification_id, notes)
        if not rows:
            return Evidence(notification_id, None, ControlHistory())
        row = rows[0]
        if row.get("erased"):
            notes.append(erased_by(row["erased"]))
        stored = {field: row[field] for field in Notification.__struct_fields__ if field in row}
        stored |= {"accepted_ms": _milliseconds(row["accepted_at"]), "path": tuple(row["path"].split())}
        notification = Notification(id=notification_id, **stored)
        return Evidence(
            notification_id,
            notification,
            ControlHistory(),
            logged_ms=_milliseconds(row["logged_at"]),
            partition=row["partition"],
            offset=row["offset"],
        )

    def _from_log(self, notification_id: str, notes: list[str]) -> Evidence | None:
        """From the log: first near the time of the id, if it has one, then the end. A trigger's publication long after
        its cause has an id with the time of the cause."""
        made_ms = made_at(notification_id)
        found = None
        if made_ms:
            found = self._between(notification_id, made_ms - _CLOCKS_MS, made_ms + _APPEND_MS, notes)
        return found or self._between(notification_id, self._newest(NOTIFICATIONS) - _OVERLAP_MS, None, notes)

    def _between(self, notification_id: str, since_ms: int, until_ms: int | None, notes: list[str]) -> Evidence | None:
        for record in self._log("notifications", since_ms, notes):
            # Records contain ids as they are: most need not be decoded.
            if record.value is not None and notification_id.encode() in record.value:
                notification = notifications.decode(record.value)
                if notification.id == notification_id:
                    place = (record.timestamp, record.partition, record.offset)
                    return Evidence(notification_id, notification, ControlHistory(), *place)
            if until_ms is not None and record.timestamp > until_ms:
                return None
        return None

    def _recent(self, notification_id: str, notes: list[str]) -> tuple[list[Row], MatchedBy | None]:
        """Attempts that the table does not have yet, and the evaluation, if it is recent."""
        since_ms = self._newest(ATTEMPTS) - _OVERLAP_MS
        rows, evaluated = [], None
        for record in self._log("attempts", since_ms, notes):
            if record.value is not None and notification_id.encode() in record.value:
                found = attempts.readable(record.value).attempts
                rows += [each for each in found if each.notification == notification_id]
                evaluated = _evaluated_in(record, notification_id, evaluated)
        return list(attempt_rows(rows)), evaluated

    def _evaluated(self, found: Evidence, rows: Sequence[Row]) -> MatchedBy | None:
        """An older evaluation: the log has it between the notification's record and the first attempt."""
        until_ms = min((_milliseconds(row["started_at"]) for row in rows), default=found.logged_ms) + _APPEND_MS
        # Without notes: if the log no longer has it, the times of the records are used.
        evaluated = None
        for record in self._log("attempts", found.logged_ms - _CLOCKS_MS, [], only=found.partition):
            if record.value is not None and found.id.encode() in record.value:
                evaluated = _evaluated_in(record, found.id, evaluated)
            if record.timestamp > until_ms or (evaluated is not None and not evaluated.thinned):
                break
        return evaluated

    def _instead(
        self, found: Evidence, control: ControlHistory, rows: Sequence[Row], notes: list[str]
    ) -> dict[str, str]:
        """The notifications delivered instead of this one within a minimum interval: the last one before it."""
        notification = found.notification
        if notification is None:
            return {}
        had = {str(row["subscription"]) for row in rows}
        known = {name: control.last(name) for name in control.states if name not in had}
        policies = {name: each.policy for name, each in known.items() if each is not None and each.policy.interval_ms}
        last: dict[str, tuple[int, str]] = {}
        since_ms = notification.accepted_ms - max((each.interval_ms for each in policies.values()), default=0)
        for record in self._log("attempts", since_ms - _CLOCKS_MS, notes, only=found.partition):
            evaluation = attempts.evaluation_in(record.value)
            if evaluation is None or evaluation.partition != found.partition:
                continue
            for each in evaluation.matched:
                if each.offset >= found.offset:
                    continue
                for name in policies.keys() & set(each.passed):
                    if policies[name].interval_per == "subscription" or each.topic == notification.topic:
                        last[name] = max(last.get(name, (-1, "")), (each.offset, each.notification))
            if record.timestamp > found.logged_ms + _APPEND_MS:
                break
        return {name: instead for name, (_, instead) in last.items()}

    def _health(self, endpoints: Collection[str]) -> dict[str, Row]:
        """The health of the endpoints of waiting deliveries."""
        rows = self._rows_with(ENDPOINT_HEALTH, "endpoint", sorted(endpoints))
        return {row["endpoint"]: row for row in sorted(rows, key=itemgetter("at"))}

    def _rows_with(self, spec: TableSpec, column: str, values: Sequence[str]) -> list[dict[str, Any]]:
        table = self._table(spec) if values else None
        return [] if table is None else rows_with(table, column, values)

    def _rows(self, spec: TableSpec, notification_id: str, notes: list[str]) -> list[dict[str, Any]]:
        try:
            table = self._table(spec)
            if table is None:
                notes.append(f"there is no table {spec.name} yet")
                return []
            # Ids sort by time: statistics exclude files of other times.
            return rows_with(table, "notification", [notification_id])
        except (DeltaError, OSError) as error:
            notes.append(f"the table {spec.name} cannot be read: {error}")
            return []

    def _newest(self, spec: TableSpec) -> int:
        """The newest time in a table, from its files' statistics; the least one without any."""
        try:
            table = self._table(spec)
        except (DeltaError, OSError):
            table = None
        last = newest(table, spec.time) if table is not None else None
        return _milliseconds(last) if last is not None else _OVERLAP_MS

    def _table(self, spec: TableSpec) -> DeltaTable | None:
        location = spec.location(self.tables, self.home)
        return open_table(location) if table_exists(location) else None

    def _log(
        self, name: str, since_ms: int, notes: list[str], most: int = _MOST_RECORDS, only: int | None = None
    ) -> Iterator[ConsumerRecord]:
        """The log from a time on to its end, up to the limits of a trace. `only`, a partition of another log, selects
        the partition of this one with its records."""
        deadline = time.monotonic() + _MOST_SECONDS
        with LogScan(self.kafka, name) as log:
            firsts = log.at(since_ms)
            if only is not None:
                firsts = {each: first for each, first in firsts.items() if each == only % len(firsts)}
            for count, record in enumerate(log.read_from(firsts)):
                if count >= most or time.monotonic() > deadline:
                    notes.append(f"only {count} records of the {name} log were searched: there are more")
                    return
                yield record


def in_pull_points(records: Iterable[ConsumerRecord], notification_id: str, until_ms: int) -> dict[str, Step]:
    """The last step of a notification in the pull point of each subscription: these records are the log from its
    storing on. Without an open step, none after `until_ms` is read."""
    steps: dict[str, Step] = {}
    waiting: dict[bytes, dict[int, StoredMessage]] = {}
    claimed: dict[tuple[bytes, str], tuple[int, dict[int, StoredMessage]]] = {}
    for record in records:
        if record.timestamp > until_ms and not claimed and not any(waiting.values()):
            break
        point, value = record.key or b"", record.value or b""
        if point not in waiting and notification_id.encode() not in value:
            continue
        mine = waiting.setdefault(point, {})
        read = unless_damaged(PULL_LOG, record.offset, pull.decode, point, value)
        match None if read is None else read[1]:
            case StoredMessage(notification=name) as message if name == notification_id:
                # Without the payload: a notification may be in many pull points.
                mine[record.offset] = msgspec.structs.replace(message, element=b"")
                steps[message.subscription] = _WAITS_IN_POINT
            case Claimed(claim=claim, first=first, last=last):
                taken = {each: mine.pop(each) for each in list(mine) if first <= each <= last}
                if taken:
                    claimed[point, claim] = record.timestamp, taken
                for message in taken.values():
                    steps[message.subscription] = Step(utc(record.timestamp), "handed out, not confirmed yet")
                # A client gets the oldest messages; an erasure takes out others.
                for offset, message in () if claim.startswith(ERASED) else mine.items():
                    if offset < first:
                        steps[message.subscription] = Step(None, "dropped there: the pull point was full")
            case Settled(claim=claim) | Returned(claim=claim) as end if (point, claim) in claimed:
                at_ms, taken = claimed.pop((point, claim))
                for offset, message in taken.items():
                    if isinstance(end, Returned) and offset not in end.settled:
                        mine[offset] = message
                        steps[message.subscription] = _WAITS_IN_POINT
                        continue
                    over = 0 < message.valid_until_ms <= at_ms
                    what = "erased" if claim.startswith(ERASED) else "expired there" if over else "fetched"
                    steps[message.subscription] = Step(utc(record.timestamp), what)
    return steps


_WAITS_IN_POINT = Step(None, "not fetched yet")


def _evaluated_in(record: ConsumerRecord, notification_id: str, before: MatchedBy | None) -> MatchedBy | None:
    """The evaluation of a notification in a record, joined with its pieces in earlier records."""
    evaluation = attempts.evaluation_in(record.value)
    if evaluation is not None:
        for each in evaluation.matched:
            if each.notification == notification_id:
                same = before is not None and (before.batch, before.control) == (evaluation.batch, evaluation.control)
                before = MatchedBy(
                    record.timestamp,
                    evaluation.batch,
                    evaluation.control,
                    each.subscriptions,
                    each.thinned,
                    (*before.passed, *each.passed) if before is not None and same else each.passed,
                )
    return before


def _together(recorded: Sequence[Row], recent: Sequence[Row]) -> list[Row]:
    """Rows of the table and of the log, each once."""
    once = {
        (row["subscription"], row["number"], row["push"], row["state"], row["started_at"]): row
        for row in (*recorded, *recent)
    }
    return sorted(once.values(), key=lambda row: _milliseconds(row["started_at"]))


def _milliseconds(at: object) -> int:
    assert isinstance(at, datetime)  # noqa: S101  # the type of every timestamp column
    return round(at.timestamp() * 1000)


def attempt_rows(them: Iterable[Attempt]) -> Iterator[Row]:
    """Rows in the form of the table of attempts."""
    for each in them:
        yield {column.name: getattr(each, column.name, None) for column in ATTEMPTS.columns} | {
            "day": utc(each.started_ms).date(),
            "accepted_at": utc(each.accepted_ms),
            "started_at": utc(each.started_ms),
            "next_at": utc(each.next_ms) if each.next_ms else None,
        }
