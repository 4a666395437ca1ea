"""Duplicate xml:ids in messages that are sent together: parsers such as libxml2 refuse a document with duplicates, and
payloads come from many documents. Pure, for the hot path: a payload without xml:id costs one search."""

from __future__ import annotations

import re
from collections.abc import Iterable

NAME = b"xml:id"
"""Without these bytes there are no ids: the prefix xml cannot be redeclared."""

# Occurrences in text or CDATA count too, and may separate messages needlessly.
_ATTRIBUTE = re.compile(rb"xml:id\s*+=\s*+(?:\"([^\"<]*+)\"|'([^'<]*+)')")

# A message with more or longer ids is sent alone, since ids of waiting messages are in memory.
_MAX_IDS, _MAX_LENGTH = 16, 200

XmlIds = frozenset[int]
"""The ids of a message, as hashes of this process."""

NO_IDS: XmlIds = frozenset()

_ANY = -1  # not the value of a hash

_NOT_COMPARED: XmlIds = frozenset({_ANY})


def xml_ids(*parts: bytes) -> XmlIds:
    """The xml:ids in parts of a well-formed document."""
    found: set[int] = set()
    for part in parts:
        if NAME not in part:
            continue
        for double, single in _ATTRIBUTE.findall(part):
            value = double or single
            # A reference may be any character. White space around an id is ignored.
            if b"&" in value or len(value) > _MAX_LENGTH or len(found) == _MAX_IDS:
                return _NOT_COMPARED
            found.add(hash(value.strip()))
    return frozenset(found) if found else NO_IDS


def clash(some: XmlIds, others: XmlIds) -> bool:
    """Whether two messages cannot be in one document."""
    if not some or not others:
        return False
    return _ANY in some or _ANY in others or not some.isdisjoint(others)


def any_clash(messages: Iterable[XmlIds]) -> bool:
    """Whether these messages cannot be in one document."""
    seen = NO_IDS
    for ids in messages:
        if clash(ids, seen):
            return True
        seen |= ids
    return False
