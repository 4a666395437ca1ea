"""The mapping between an entry and a topic record. Pure.

A topic's path consists of the names from the base down; its namespace is that of its parent unless the entry has
another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import count

import msgspec

from arborcast.core.errors import TopicError
from arborcast.directory.entries.dn import Dn, Rdn, format_dn
from arborcast.directory.entries.entries import Entry
from arborcast.topic_model.records.control import TopicPolicy, TopicRecord
from arborcast.topic_model.topics import Step, TopicPath, split_path
from arborcast.topic_model.tree.distribution import check_routing
from arborcast.topic_model.tree.plans import check_record


class ProblemKind(Enum):
    """The reason for which an entry was skipped or a change not written. The values are stable, for logs and
    metrics."""

    ALIAS = "alias"
    FOREIGN = "foreign"
    ORPHAN = "orphan"
    MISSING_ATTRIBUTE = "missing-attribute"
    ILLEGAL_NAME = "illegal-name"
    BAD_VALUE = "bad-value"
    DUPLICATE_TOPIC = "duplicate-topic"
    DUPLICATE_CODE = "duplicate-code"
    BELOW_FINAL = "below-final"
    CONFLICT = "conflict"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class EntryProblem:
    """A skipped entry or an unwritten change."""

    kind: ProblemKind
    dn: str
    reason: str
    path: TopicPath | None = None

    def __str__(self) -> str:
        return f"{self.dn}: {self.reason} ({self.kind.value})"


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """A topic and its entry. `plain`: its RDN is as the engine would write it."""

    record: TopicRecord
    entry_dn: Dn
    plain: bool = True

    @property
    def dn(self) -> str:
        """The entry's DN, for messages."""
        return format_dn(self.entry_dn)


@dataclass(frozen=True)
class Listing:
    """The state of a directory.

    `places` has the key of every entry with a path, topic or node. `held` are topics with invalid entries: they were
    not removed, so their last properties stay. `initialised` is False while the base entry is missing (a new server, no
    file): such a directory never empties a tree. `fresh` marks the first listing after a start or a reconnect, before
    which changes may have been missed. Of two listings the one with the greater `version` was read later.
    """

    entries: Mapping[TopicPath, TopicEntry] = field(default_factory=dict)
    problems: tuple[EntryProblem, ...] = ()
    held: frozenset[TopicPath] = frozenset()
    places: Mapping[TopicPath, Dn] = field(default_factory=dict)
    initialised: bool = True
    fresh: bool = False
    version: int = field(default_factory=count(1).__next__, compare=False)

    def records(self) -> dict[TopicPath, TopicRecord]:
        return {path: entry.record for path, entry in self.entries.items()}


def canonical(record: TopicRecord) -> TopicRecord:
    """The record in the form of a directory: multiple values are sorted, since LDAP has sets, and a generated code is
    an ordinary one."""
    if record.placed:
        record = msgspec.structs.replace(record, placed=False)
    types = tuple(sorted(set(record.message_types)))
    publishers = tuple(sorted(set(record.policy.publishers)))
    if types == record.message_types and publishers == record.policy.publishers:
        return record
    policy = msgspec.structs.replace(record.policy, publishers=publishers)
    return msgspec.structs.replace(record, message_types=types, policy=policy)


TOPIC_CLASS = "arborcastTopic"

NAMES: Mapping[str, str] = {
    name.lower(): name
    for name in (
        "objectClass",
        "topicName",
        "topicNamespace",
        "topicCode",
        "topicMessageType",
        "topicFinal",
        "topicIsTopic",
        "topicRetain",
        "topicPriority",
        "topicRoutingPolicy",
        "topicPublisher",
        "topicQueue",
        "topicMerge",
    )
}
"""Attribute types of the schema: lower case to their spelling."""

FACTS = frozenset(NAMES) - {"objectclass", "topicname", "topicnamespace"}
"""The attributes with a topic's properties, apart from its name; others are not changed."""

_MAX_INTEGER_DIGITS = 18  # fits 64 bits


class Skip(Exception):
    """An entry cannot be mapped. Caught while a listing is read."""

    def __init__(self, kind: ProblemKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


def read_steps(entry: Entry, above: tuple[Step, ...] | None) -> tuple[Step, ...]:
    """The steps of the entry's topic or node; `above` is None if its parent is not in the tree."""
    if entry.has_class("alias"):
        raise Skip(ProblemKind.ALIAS, "aliases are not followed (they can form loops); make it an ordinary entry")
    if not entry.has_class(TOPIC_CLASS):
        raise Skip(ProblemKind.FOREIGN, f"not an {TOPIC_CLASS}")
    if above is None:
        raise Skip(ProblemKind.ORPHAN, "the entry above is not part of the topic tree")
    name = entry.text("topicname")
    if name is None:
        raise Skip(ProblemKind.MISSING_ATTRIBUTE, "topicName is missing")
    namespace = entry.text("topicnamespace")
    if namespace is None:
        namespace = above[-1][0] if above else ""
    return (*above, (namespace, name))


def read_record(entry: Entry, path: TopicPath) -> TopicRecord | None:
    """The topic's record; None for a node. Raises Skip."""
    if _boolean(entry, "topicistopic") is False:
        return None
    record = TopicRecord(
        path=path,
        code=entry.text("topiccode") or "",
        message_types=_texts(entry, "topicmessagetype"),
        final=_boolean(entry, "topicfinal") is True,
        policy=TopicPolicy(
            retain=_boolean(entry, "topicretain"),
            priority=_integer(entry, "topicpriority"),
            routing="" if wrong_routing(entry) else entry.text("topicroutingpolicy") or "",
            publishers=_texts(entry, "topicpublisher"),
            queue=_boolean(entry, "topicqueue") is True,
            merge=_boolean(entry, "topicmerge") is not False,
        ),
    )
    try:
        return check_record(record)
    except TopicError as error:
        raise Skip(ProblemKind.BAD_VALUE, str(error)) from error


def wrong_routing(entry: Entry) -> str:
    """The reason why a topic's routing policy is invalid and ignored; empty for a valid one."""
    try:
        check_routing(entry.text("topicroutingpolicy") or "")
    except TopicError as error:
        return f"topicRoutingPolicy is ignored: {error}"
    return ""


def _texts(entry: Entry, name: str) -> tuple[str, ...]:
    return tuple(sorted({value.decode(errors="replace") for value in entry.attributes.get(name, ())}))


def _boolean(entry: Entry, name: str) -> bool | None:
    text = entry.text(name)
    if text is None:
        return None
    if text.upper() not in ("TRUE", "FALSE"):
        raise Skip(ProblemKind.BAD_VALUE, f"{NAMES[name]} is {text!r}, must be TRUE or FALSE")
    return text.upper() == "TRUE"


def _integer(entry: Entry, name: str) -> int:
    text = entry.text(name)
    if text is None:
        return 0
    digits = text[1:] if text.startswith("-") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_INTEGER_DIGITS):
        raise Skip(ProblemKind.BAD_VALUE, f"{NAMES[name]} is {text!r}, must be an integer")
    return int(text)


def write_facts(record: TopicRecord | None) -> dict[str, tuple[bytes, ...]]:
    """The attributes of FACTS for this record; None for a node. Defaults are not written."""
    if record is None:
        return {"topicistopic": (b"FALSE",)}
    record = canonical(record)
    policy = record.policy
    facts: dict[str, Iterable[str]] = {
        "topiccode": (record.code,) if record.code else (),
        "topicmessagetype": record.message_types,
        "topicfinal": ("TRUE",) if record.final else (),
        "topicretain": () if policy.retain is None else ("TRUE" if policy.retain else "FALSE",),
        "topicpriority": (str(policy.priority),) if policy.priority else (),
        "topicroutingpolicy": (policy.routing,) if policy.routing else (),
        "topicpublisher": policy.publishers,
        "topicqueue": ("TRUE",) if policy.queue else (),
        "topicmerge": () if policy.merge else ("FALSE",),
    }
    encoded = {name: tuple(value.encode() for value in values) for name, values in facts.items()}
    return {name: values for name, values in encoded.items() if values}


def write_rdn(path: TopicPath) -> Rdn:
    """The RDN of a topic's entry, with the namespace if it differs from the parent's."""
    steps = list(split_path(path))
    namespace, name = steps[-1]
    above = steps[-2][0] if len(steps) > 1 else ""
    if namespace == above:
        return (("topicname", name),)
    return (("topicname", name), ("topicnamespace", namespace))


def write_entry(path: TopicPath, record: TopicRecord | None, parent: Dn) -> Entry:
    """A new entry for a topic or node below the entry `parent`."""
    rdn = write_rdn(path)
    attributes: dict[str, tuple[bytes, ...]] = {"objectclass": (TOPIC_CLASS.encode(),)}
    attributes.update((kind, (value.encode(),)) for kind, value in rdn)
    attributes.update(write_facts(record))
    return Entry.of((rdn, *parent), attributes)


_BASE_CLASSES: Mapping[str, bytes] = {
    "ou": b"organizationalUnit",
    "o": b"organization",
    "cn": b"organizationalRole",
}


def write_base(base: Dn) -> Entry | None:
    """The base entry; None if the class for its RDN type is unknown."""
    if not base or len(base[0]) != 1:
        return None
    ((kind, value),) = base[0]
    if kind not in _BASE_CLASSES:
        return None
    return Entry.of(base, {"objectclass": (_BASE_CLASSES[kind],), kind: (value.encode(),)})
