"""The xml:ids of what travels together: a document in which two elements have the same one is refused by parsers
(libxml2 does so). Payloads come from many documents, each with ids of its own, and leave together in one.

Pure, and for the hot path: what has no xml:id costs one search for these six bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

NAME = b"xml:id"
"""What has no such bytes has no ids: the prefix xml cannot be declared, so there is no other way to write it."""

# What stands in text or CDATA is found too: then messages travel apart that need not.
_ATTRIBUTE = re.compile(rb"xml:id\s*+=\s*+(?:\"([^\"<]*+)\"|'([^'<]*+)')")

# Beyond these a message is not compared, and travels alone: ids of what waits are kept in memory.
_MOST, _LONGEST = 16, 200

XmlIds = frozenset[int]
"""The ids of a message, as hashes of this process."""

NO_IDS: XmlIds = frozenset()

_ANY = -1  # which no hash is

_NOT_COMPARED: XmlIds = frozenset({_ANY})


def xml_ids(*parts: bytes) -> XmlIds:
    """The xml:ids in parts of a well-formed document."""
    found: set[int] = set()
    for part in parts:
        if NAME not in part:
            continue
        for double, single in _ATTRIBUTE.findall(part):
            value = double or single
            # A reference may stand for any letter. White space around an id does not count.
            if b"&" in value or len(value) > _LONGEST or len(found) == _MOST:
                return _NOT_COMPARED
            found.add(hash(value.strip()))
    return frozenset(found) if found else NO_IDS


def clash(some: XmlIds, others: XmlIds) -> bool:
    """Whether the two may not stand in one document."""
    if not some or not others:
        return False
    return _ANY in some or _ANY in others or not some.isdisjoint(others)


def any_clash(messages: Iterable[XmlIds]) -> bool:
    """Whether these messages may not all stand in one document."""
    there = NO_IDS
    for ids in messages:
        if clash(ids, there):
            return True
        there |= ids
    return False
