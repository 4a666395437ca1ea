"""Changes by operators: the records of the log `operations`, and changes of control records as text.

The first record of an operation is written before its change. The second one has its result or its failure; it is
missing if the process ended in between.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from arborcast.core.versions import RecordCodec
from arborcast.core.wall_clock import time_ms
from arborcast.topic_model.records.control import (
    ControlRecord,
    SubscriptionEnded,
    SubscriptionRecord,
    Tombstone,
    TopicRecord,
    TopicRemoved,
    TriggerEnded,
    TriggerRecord,
)
from arborcast.topic_model.subscriptions import Subscription

VERSION = 1

Interface = Literal["command", "console", "directory"]

# Maximum characters of a value, and changes of a record, which has at most a megabyte.
_MAX_CHARACTERS = 4_000
_CHANGES_PER_RECORD = 32

RESTORE = "restore"
"""The operation that fills empty logs from a backup."""

_FAILED = "failed: "

# Names of fields in records of version 1.
_FIELDS = {"interface": "door", "actor": "who", "action": "what"}

MAX_CHANGES = 1_000
"""Maximum number of recorded changes of an operation; the others are only counted."""


class RecordedChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change of `subject`: a topic, a subscription, a user, a key, a filter. Its values before and after are JSON;
    empty for none."""

    subject: str
    before: str = ""
    after: str = ""


class OperationBegun(msgspec.Struct, frozen=True, omit_defaults=True, tag="begun", rename=_FIELDS):
    """An operation, or a piece of one: `first` is the number of the piece's first change. `more` is the number of
    changes that are not recorded."""

    id: str
    at_ms: int
    interface: Interface
    actor: str
    action: str
    changes: tuple[RecordedChange, ...]
    first: int = 0
    more: int = 0


class Operator(NamedTuple):
    """The author of a change, and the interface used."""

    interface: Interface
    actor: str


class OperationEnded(msgspec.Struct, frozen=True, omit_defaults=True, tag="ended"):
    """The result of an operation with this number of recorded changes."""

    id: str
    result: str
    changes: int

    @property
    def succeeded(self) -> bool:
        return not self.result.startswith(_FAILED)


_Record = OperationBegun | OperationEnded

_codec = RecordCodec[_Record](_Record, "a record of an operation", VERSION, readable=True)

decode = _codec.decode
"""The record in a value. Raises RecordVersionError, or InfrastructureError."""


def encode(record: _Record) -> tuple[bytes, bytes]:
    """The key and the value of a record."""
    return record.id.encode(), _codec.encode(record)


def pieces_of(operation: OperationBegun) -> Iterator[OperationBegun]:
    """The operation in records of bounded size."""
    changes = operation.changes[:MAX_CHANGES]
    more = operation.more + len(operation.changes) - len(changes)
    for first in range(0, max(1, len(changes)), _CHANGES_PER_RECORD):
        yield msgspec.structs.replace(
            operation, changes=changes[first : first + _CHANGES_PER_RECORD], first=first, more=0 if first else more
        )


def begun(by: Operator, action: str, changes: Iterable[RecordedChange], more: int = 0) -> OperationBegun:
    """The record of an operation that begins now."""
    return OperationBegun(secrets.token_hex(12), time_ms(), by.interface, by.actor, action, tuple(changes), more=more)


def ended(operation: OperationBegun, result: str) -> OperationEnded:
    """The record of the operation's result."""
    return OperationEnded(operation.id, result[:500], min(len(operation.changes), MAX_CHANGES))


def failed(operation: OperationBegun, error: BaseException) -> OperationEnded:
    """The record of the operation's failure."""
    return ended(operation, f"{_FAILED}{str(error) or type(error).__name__}")


def change(subject: str, before: object = None, after: object = None) -> RecordedChange:
    """A change between two values; None for no value."""
    return RecordedChange(subject[:_MAX_CHARACTERS], _text(before), _text(after))


def control_changes(
    records: Iterable[ControlRecord], before: Callable[[str], object]
) -> tuple[list[RecordedChange], int]:
    """The first changes by these control records, and the number of the others. `before` returns the former value of a
    topic or id."""
    found: list[RecordedChange] = []
    more = 0
    for record in records:
        after: object = None
        match record:
            case TopicRecord(path=path):
                name, after = str(path), record
            case TopicRemoved(path=path):
                name = str(path)
            case SubscriptionRecord(subscription=one) | TriggerRecord(subscription=one):
                name, after = one.id, one
            case SubscriptionEnded(id=name) | TriggerEnded(id=name):
                pass
            case Tombstone(subject=("susp", name)):
                found.append(change(name, "suspended", "resumed"))
                continue
            case _:
                continue  # the null of an ended entity, or places of topics
        if len(found) < MAX_CHANGES:
            found.append(change(name, _shown(before(name)), _shown(after)))
        else:
            more += 1
    return found, more


def _shown(value: object) -> object:
    """A topic's properties; the fields of a subscription that operators change, without its secrets."""
    if isinstance(value, TopicRecord):
        facts: dict[str, Any] = msgspec.to_builtins(value.facts)
        return {name: each for name, each in facts.items() if name != "path"}
    if isinstance(value, Subscription):
        return {
            "endpoint": value.consumer.address,
            "topics": [each.text for each in value.topics],
            "owner": value.owner,
            "paused": value.paused,
            "terminates_ms": value.terminates_ms,
        }
    return value


def _text(value: object) -> str:
    text = "" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + "…"
