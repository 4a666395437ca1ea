"""Folds of the logs `control`, `parked`, `dead`, `fragments` and `operations` into tables. Pure. A fold reads the whole
record before it changes anything."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import get_args

from arborcast.core.eventlog.client import ConsumerRecord
from arborcast.dispatch.logs import dead_letters, parked
from arborcast.dispatch.logs.parked import Parked, Tried, Tries
from arborcast.dispatch.recording.state_tables import RowChanges, TableFold
from arborcast.dispatch.redelivery.events import EventListener, OperatorEvent
from arborcast.dispatch.tables import DEAD_LETTERS, ERASURES, INCOMPLETE, OPERATIONS, RETRIES, SUBSCRIPTIONS, TOPICS
from arborcast.dispatch.tables.spec import Row
from arborcast.topic_model.records import control, fragments, operations
from arborcast.topic_model.records.control import (
    ErasedPlace,
    Erasure,
    SubscriptionEnded,
    SubscriptionRecord,
    SubscriptionSuspended,
    Tombstone,
    TopicRecord,
    TopicRemoved,
)
from arborcast.topic_model.records.fragments import Assembled, GivenUp
from arborcast.topic_model.records.operations import OperationBegun
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import ancestors, last_step, parent_of


class TopicsFold(TableFold):
    spec = TOPICS
    writer = "control"

    def apply(self, record: ConsumerRecord, changes: RowChanges) -> None:
        match control.decode(record.key or b"", record.value):
            case TopicRecord() as topic:
                changes.put(topic.path, topic_row(topic, record.timestamp))
            case TopicRemoved(path=path):
                changes.drop(path)
            case Tombstone(subject=("topic", name)):
                changes.drop(name)


class SubscriptionsFold(TableFold):
    """The current and the ended subscriptions."""

    spec = SUBSCRIPTIONS
    writer = "control"
    patched: Sequence[str] = ("state", "reason", "ended_at", "suspended_at", "changed_at")
    kept = ("suspended_at",)
    mirrors = "state <> 'ended'"

    def patches(self, row: Row, columns: Row) -> bool:
        # The tombstone after an end must not remove its reason.
        return bool(row["state"] != "ended")

    def apply(self, record: ConsumerRecord, changes: RowChanges) -> None:
        match control.decode(record.key or b"", record.value):
            case SubscriptionRecord(subscription=subscription):
                changes.put(subscription.id, subscription_row(subscription, record.timestamp))
            case SubscriptionEnded(id=name, reason=reason, at_ms=at_ms):
                changes.patch(name, _ended(reason, at_ms, record.timestamp))
            case Tombstone(subject=("sub", name)):
                if changes.get(name, "state") != "ended":
                    changes.patch(name, _ended("unknown", record.timestamp, record.timestamp))


class SuspensionsFold(SubscriptionsFold):
    """Suspensions: separate records, which fill their own column after `SubscriptionsFold`, with their own position."""

    writer = "suspensions"
    patched = ("suspended_at",)
    mirrors = "false"

    def apply(self, record: ConsumerRecord, changes: RowChanges) -> None:
        match control.decode(record.key or b"", record.value):
            case SubscriptionSuspended(id=name, at_ms=at_ms):
                changes.patch(name, {"suspended_at": moment(at_ms)})
            case Tombstone(subject=("susp", name)):
                changes.patch(name, {"suspended_at": None})


class ErasuresFold(TableFold):
    """Erasures. A row stays when its record leaves the control log."""

    spec = ERASURES
    writer = "control"
    mirrors = "false"

    def apply(self, record: ConsumerRecord, changes: RowChanges) -> None:
        match control.decode(record.key or b"", record.value):
            case Erasure(scope=scope, by=by, at_ms=at_ms, erased=erased, done_ms=done_ms, kept_until_ms=kept_ms):
                bounded = done_ms and kept_ms and all(kept_ms.values())
                changes.put(
                    scope.id,
                    {
                        "requested_by": by,
                        "requested_at": moment(at_ms),
                        "before": moment(scope.before_ms),
                        "topic": scope.topic,
                        "notification": scope.notification,
                        "subject_sha256": hashlib.sha256(scope.subject.encode()).hexdigest() if scope.subject else "",
                        **{place: erased.get(place, 0) for place in get_args(ErasedPlace)},
                        "done_at": moment(done_ms) if done_ms else None,
                        "kept_until": moment(max(kept_ms.values())) if bounded else None,
                    },
                )


def topic_row(topic: TopicRecord, changed_ms: int) -> dict[str, object]:
    return {
        "topic": topic.path,
        "parent": parent_of(topic.path) or "",
        "name": last_step(topic.path),
        "depth": 1 + sum(1 for _ in ancestors(topic.path)),
        "code": topic.code,
        "message_types": " ".join(topic.message_types),
        "final": topic.final,
        "retain": topic.policy.retain is True,
        "priority": topic.policy.priority,
        "routing": topic.policy.routing,
        "publishers": " ".join(topic.policy.publishers),
        "queue": topic.policy.queue,
        "changed_at": moment(changed_ms),
    }


def subscription_row(subscription: Subscription, changed_ms: int) -> dict[str, object]:
    return {
        "subscription": subscription.id,
        "state": "paused" if subscription.paused else "active",
        "reason": "",
        "endpoint": subscription.consumer.address,
        "expression": "\n".join(each.text for each in subscription.topics),
        "selector": subscription.selector(),
        "content": "\n".join(each.text for each in subscription.content),
        "producer": "\n".join(each.text for each in subscription.producer),
        "types": " ".join(subscription.types),
        "form": subscription.form,
        "soap": subscription.soap,
        "reliability": subscription.policy.reliability,
        "order": subscription.policy.order,
        "priority": subscription.policy.priority,
        "minimum_interval_ms": subscription.policy.interval_ms,
        "interval_per": subscription.policy.interval_per if subscription.policy.interval_ms else "",
        "deadline_ms": subscription.policy.deadline_ms or 0,
        "deadline_per": subscription.policy.deadline_per if subscription.policy.deadline_ms else "",
        "fragment_bytes": subscription.policy.fragment_bytes,
        "queue_capacity": subscription.queue,
        "owner": subscription.owner,
        "pull_point": subscription.pull_point,
        "created_at": moment(subscription.created_ms),
        "terminates_at": None if subscription.terminates_ms is None else moment(subscription.terminates_ms),
        "ended_at": None,
        "changed_at": moment(changed_ms),
    }


# Python's limit; a subscriber may request a termination in the year 99999.
_LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def moment(milliseconds: int) -> datetime:
    """Milliseconds since the epoch as a time in UTC, limited to Python's last time."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return _LAST


def _ended(reason: str, at_ms: int, changed_ms: int) -> dict[str, object]:
    return {"state": "ended", "reason": reason, "ended_at": moment(at_ms), "changed_at": moment(changed_ms)}


class RetriesFold(TableFold):
    """The waiting deliveries. A repeated batch parks the same ones again; their tries stay."""

    spec = RETRIES
    writer = "parked"
    patched = ("tries", "counted", "due_at")

    def patches(self, row: Row, columns: Row) -> bool:
        tries, earlier = (columns["tries"], columns["counted"]), (row["tries"], row["counted"])
        due, known = columns["due_at"], row["due_at"]
        return tries > earlier or (tries == earlier and None not in (due, known) and due < known)

    def apply(self, record: ConsumerRecord, changes: RowChanges) -> None:
        delivery, is_tries = parked.decode_key(record.key)
        entry = None if record.value is None else parked.decode(record.value)
        key = delivery.key().decode()
        match entry:
            case Parked(notification=notification, tries=tries):
                row = {
                    "notification": notification.id,
                    "subscription": delivery.subscription,
                    "topic": notification.topic,
                    "accepted_at": moment(notification.accepted_ms),
                    "parked_at": moment(record.timestamp),
                    "batch": delivery.place.batch,
                    "partition": delivery.place.partition,
                    "offset": delivery.place.offset,
                }
                changes.add(key, row | _tries(tries))
            case Tried(tries=tries):
                changes.patch(key, _tries(tries))
            case None if not is_tries:
                changes.drop(key)


class DeadLettersFold(TableFold):
    spec = DEAD_LETTERS
    writer = "dead"

    def apply(self, record: ConsumerRecord, changes: RowChanges) -> None:
        key = record.key.decode()
        if record.value is None:
            changes.drop(key)
            return
        letter = dead_letters.decode(record.value)
        changes.put(
            key,
            {
                "notification": letter.notification.id,
                "subscription": letter.subscription,
                "topic": letter.notification.topic,
                "endpoint": letter.endpoint,
                "state": letter.state,
                "error": letter.error,
                "detail": letter.detail,
                "status": letter.status,
                "attempts": letter.number,
                "accepted_at": moment(letter.notification.accepted_ms),
                "ended_at": moment(letter.at_ms),
            },
        )


def _tries(tries: Tries) -> dict[str, object]:
    return {
        "tries": tries.number,
        "counted": tries.counted,
        "due_at": moment(tries.due_ms) if tries.due_ms else None,
    }


class IncompleteFold(TableFold):
    """Messages in parts that were given up, with an event for each. A message that was assembled at the same moment
    has no row."""

    spec = INCOMPLETE
    writer = "fragments"
    mirrors = "false"

    def __init__(self, publish: EventListener = lambda _: None) -> None:
        self._publish = publish

    def apply(self, record: ConsumerRecord, changes: RowChanges) -> None:
        match read := fragments.decode(b"", record.value):
            case GivenUp():
                changes.put(_message(read), _given_up(read))
                if self.is_first(record):
                    self._publish(_given_up_event(read))
            case Assembled():
                changes.drop(_message(read))


class OperationsFold(TableFold):
    """A row for each change. Rows of an earlier log stay. `count` is called with the interface of each operation."""

    spec = OPERATIONS
    writer = "operations"
    patched = ("result",)
    mirrors = "false"

    def __init__(self, count: Callable[[str], None] = lambda _interface: None) -> None:
        self._count = count

    def apply(self, record: ConsumerRecord, changes: RowChanges) -> None:
        read = operations.decode(record.value)
        if isinstance(read, OperationBegun) and not read.first and self.is_first(record):
            self._count(read.interface)
        if not isinstance(read, OperationBegun):
            for number in range(max(1, read.changes)):
                changes.patch(f"{read.id}/{number}", {"result": read.result})
            return
        for number, each in enumerate(read.changes or (operations.change(""),), read.first):
            row = {"at": moment(read.at_ms), "interface": read.interface, "actor": read.actor, "action": read.action}
            row |= {"subject": each.subject, "before": each.before, "after": each.after}
            changes.put(f"{read.id}/{number}", row | {"more": 0 if number else read.more, "result": ""})


def _message(record: GivenUp | Assembled) -> str:
    # The place of its first part is not unique after the log was created again.
    return f"{record.first}/{record.owner}/{record.identification}"


def _given_up(record: GivenUp) -> dict[str, object]:
    return {
        "identification": record.identification,
        "topic": record.topic,
        "owner": record.owner,
        "reason": record.reason,
        "detail": record.detail,
        "received": record.had,
        "missing": record.missing,
        "bytes": record.bytes,
        "began_at": moment(record.since_ms),
        "given_up_at": moment(record.at_ms),
    }


def _given_up_event(record: GivenUp) -> OperatorEvent:
    why = {
        "time": "no further part arrived",
        "size": "it is too large",
        "content": "the assembled message is not acceptable",
        "lost": "parts are missing in the log",
    }[record.reason]
    has = f"it has the parts {record.had}" + (f" and lacks {record.missing}" if record.missing else "")
    detail = f"the message {record.identification!r} was given up: {why}; {has}"
    return OperatorEvent(
        "fragments-incomplete",
        record.at_ms,
        detail=detail + (f" ({record.detail})" if record.detail else ""),
        topic=record.topic,
        since_ms=record.since_ms,
        facts=(("Identification", record.identification), ("Received", record.had), ("Missing", record.missing)),
    )
