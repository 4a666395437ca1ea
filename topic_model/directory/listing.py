"""What a directory says: topics by path, and what in it could not be understood. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from topic_model.directory.dn import Dn, format_dn
from topic_model.records import TopicRecord
from topic_model.topics import TopicPath


class ProblemKind(Enum):
    """Why an entry was skipped, or a change not written. The values are stable words for logs and metrics."""

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
class Problem:
    """One entry that was skipped or one change that was not written; never a reason to stop."""

    kind: ProblemKind
    dn: str
    reason: str
    path: TopicPath | None = None

    def __str__(self) -> str:
        return f"{self.dn}: {self.reason} ({self.kind.value})"


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """A topic, and the entry it was read from. `plain`: its RDN is the one that we would have given it."""

    record: TopicRecord
    entry_dn: Dn
    plain: bool = True

    @property
    def dn(self) -> str:
        """The entry's DN, for people."""
        return format_dn(self.entry_dn)


@dataclass(frozen=True)
class Listing:
    """All of a directory at one moment.

    `places` has the key of every entry that has a path, topic or mere node. `held` are topics whose entries are there
    but cannot be used as they are: nobody asked for them to be removed, so whatever was known stays. `initialised` is
    False while the base entry itself is missing (a new server, no file yet): such a directory never empties a tree.
    `fresh` marks the first listing after a start or a reconnect, which may have missed any number of changes. Of two
    listings from one directory the one with the greater `version` is newer.
    """

    entries: Mapping[TopicPath, TopicEntry] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    held: frozenset[TopicPath] = frozenset()
    places: Mapping[TopicPath, Dn] = field(default_factory=dict)
    initialised: bool = True
    fresh: bool = False
    version: int = field(default=0, compare=False)

    def records(self) -> dict[TopicPath, TopicRecord]:
        """The topics alone."""
        return {path: entry.record for path, entry in self.entries.items()}


def canonical(record: TopicRecord) -> TopicRecord:
    """The record as a directory can hold it: LDAP keeps values of an attribute as a set, so these are sorted."""
    types = tuple(sorted(set(record.message_types)))
    publishers = tuple(sorted(set(record.policy.publishers)))
    if types == record.message_types and publishers == record.policy.publishers:
        return record
    policy = msgspec.structs.replace(record.policy, publishers=publishers)
    return msgspec.structs.replace(record, message_types=types, policy=policy)
