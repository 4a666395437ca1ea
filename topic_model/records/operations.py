"""Changes by operators: the records of the log `operations`, and changes of control records as text.

A record is written before its change is made. A second record of the same operation has its result, or why it failed;
without one the process has ended meanwhile.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from arborcast.core.versions import Versioned, VersionedCodec
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
    suspension_key,
)
from arborcast.topic_model.subscriptions import Subscription

VERSION = 1

_SUSPENSION = suspension_key("")

Door = Literal["command", "console", "directory"]

# Characters of a value, and changes of a record: it has a megabyte at most.
_MOST_CHARACTERS = 4_000
_AT_ONCE = 32

MOST_CHANGES = 1_000
"""Changes of an operation that are recorded one by one; of the others only the number."""


class RecordedChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was changed: a topic, a subscription, a user, a key, a filter. Its value before and after, as JSON; empty
    where there is none."""

    subject: str
    before: str = ""
    after: str = ""


class OperationBegun(msgspec.Struct, frozen=True, omit_defaults=True, tag="begun"):
    """An operation, or a piece of one: `first` is the number of its first change. `more` further changes are not
    recorded one by one."""

    id: str
    at_ms: int
    door: Door
    who: str
    what: str
    changes: tuple[RecordedChange, ...]
    first: int = 0
    more: int = 0


class Operator(NamedTuple):
    """Who makes a change, and how."""

    door: Door
    who: str


class OperationEnded(msgspec.Struct, frozen=True, omit_defaults=True, tag="ended"):
    """The result of an operation with this number of recorded changes."""

    id: str
    result: str
    changes: int


class _Value(Versioned, frozen=True):
    record: OperationBegun | OperationEnded


_codec = VersionedCodec(_Value, "a record of an operation", VERSION, readable=True)


def encode(record: OperationBegun | OperationEnded) -> tuple[bytes, bytes]:
    """The key and the value of a record."""
    return record.id.encode(), _codec.encode(_Value(VERSION, record))


def decode(value: bytes | None) -> OperationBegun | OperationEnded:
    """The record in a value. Raises RecordVersionError, or InfrastructureError."""
    return _codec.decode(value).record


def in_pieces(operation: OperationBegun) -> Iterator[OperationBegun]:
    """The same in records of a bounded size."""
    changes = operation.changes[:MOST_CHANGES]
    more = operation.more + len(operation.changes) - len(changes)
    for first in range(0, max(1, len(changes)), _AT_ONCE):
        yield msgspec.structs.replace(
            operation, changes=changes[first : first + _AT_ONCE], first=first, more=0 if first else more
        )


def begun(by: Operator, what: str, changes: Iterable[RecordedChange], more: int = 0) -> OperationBegun:
    """The record of an operation that begins now."""
    return OperationBegun(secrets.token_hex(12), time_ms(), by.door, by.who, what, tuple(changes), more=more)


def ended(operation: OperationBegun, result: str) -> OperationEnded:
    """The record of its result."""
    return OperationEnded(operation.id, result[:500], min(len(operation.changes), MOST_CHANGES))


def failed(operation: OperationBegun, error: BaseException) -> OperationEnded:
    """The record of its failure."""
    return ended(operation, f"failed: {str(error) or type(error).__name__}")


def change(subject: str, before: object = None, after: object = None) -> RecordedChange:
    """A change between two values; None where there is none."""
    return RecordedChange(subject[:_MOST_CHARACTERS], _text(before), _text(after))


def control_changes(
    records: Iterable[ControlRecord], before: Callable[[str], object], most: int = MOST_CHANGES
) -> tuple[list[RecordedChange], int]:
    """The changes by these control records, and the number of those beyond `most`. `before` has the former values by
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
            case Tombstone(key=key) if key.startswith(_SUSPENSION):
                found.append(change(key.removeprefix(_SUSPENSION), "suspended", "resumed"))
                continue
            case _:
                continue  # it removes another record, or keeps places of topics
        if len(found) < most:
            found.append(change(name, _shown(before(name)), _shown(after)))
        else:
            more += 1
    return found, more


def _shown(value: object) -> object:
    """A topic's facts; of a subscription the fields that operators change, without its secrets."""
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
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "…"
