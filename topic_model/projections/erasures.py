"""Erasures of payloads: a fold over the control log, and the test of a notification.

A process tests notifications only while an erasure is not done, or if a log still has erased payloads (replay,
archive). Without erasures the test is that of an empty tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import msgspec
from lxml import etree

from arborcast.core.xml import parse_xml, xml_parser
from arborcast.topic_model.expressions import compile_normal
from arborcast.topic_model.records.control import ControlRecord, Erasure, ErasureScope, Tombstone
from arborcast.topic_model.records.notifications import Notification, made_at, original_of
from arborcast.topic_model.topics import TopicPath

_encode = msgspec.json.encode

_BEGIN, _END = b"<subject>", b"</subject>"


class Erasures:
    """The current erasures, a function of the last record of each key."""

    def __init__(self) -> None:
        self._erasures: dict[str, Erasure] = {}
        self.open: tuple[Erasure, ...] = ()
        """The erasures that are not done."""
        self.scopes: tuple[ErasureScope, ...] = ()
        """The scopes of all erasures, for `covering`."""
        self.for_workers: frozenset[str] = frozenset()
        """Scopes of the erasures that are not done, as text for `scopes_of`."""

    def apply(self, record: ControlRecord) -> None:
        match record:
            case Erasure(scope=scope):
                self._erasures[scope.id] = record
            case Tombstone(subject=("erase", erasure_id)):
                self._erasures.pop(erasure_id, None)
            case _:
                return
        self.open = tuple(each for each in self._erasures.values() if not each.done_ms)
        self.scopes = tuple(each.scope for each in self._erasures.values())
        self.for_workers = frozenset(_encode(each.scope).decode() for each in self.open)

    def all(self) -> list[Erasure]:
        """All erasures, the latest first."""
        return sorted(self._erasures.values(), key=lambda each: each.at_ms, reverse=True)


@lru_cache(16)
def scopes_of(texts: frozenset[str]) -> tuple[ErasureScope, ...]:
    """The scopes in `Erasures.for_workers`."""
    return tuple(msgspec.json.decode(each, type=ErasureScope) for each in sorted(texts))


def covering(scopes: Iterable[ErasureScope], notification: Notification) -> str:
    """The id of an erasure that covers a notification; empty for none."""
    for scope in scopes:
        if covers(scope, notification):
            return scope.id
    return ""


def covers(scope: ErasureScope, notification: Notification) -> bool:
    # The acceptance time of a replay, or of a resent dead letter, is later than the original one.
    original = original_of(notification.id)
    accepted_ms = min(notification.accepted_ms, made_at(original) or notification.accepted_ms)
    return (
        accepted_ms < scope.before_ms
        and (not scope.notification or scope.notification in (notification.id, original))
        and (not scope.topic or _topics(scope.topic)(notification.topic))
        and (not scope.subject or any(mentions(scope.subject, each) for each in _texts(notification)))
    )


def selects(scope: ErasureScope, topic: TopicPath) -> bool:
    """Whether the erasure covers notifications of a topic."""
    return not scope.topic or _topics(scope.topic)(topic)


def mentions(subject: str, fragment: bytes) -> bool:
    """Whether the text of an element or the value of an attribute in the fragment equals the subject, apart from
    surrounding white space. In a fragment that is not XML any occurrence counts."""
    if b"&" not in fragment and subject.encode() not in fragment:
        return False  # the common case: without escapes the text would occur literally
    try:
        root = parse_xml(_BEGIN + fragment + _END, xml_parser(comments=False))
    except etree.XMLSyntaxError:
        return subject.encode() in fragment
    texts = (text for element in root.iter() for text in (element.text, element.tail, *element.attrib.values()))
    return any(text is not None and subject == str(text).strip() for text in texts)


def _texts(notification: Notification) -> tuple[bytes, ...]:
    return tuple(each for each in (notification.payload, notification.subject, notification.producer) if each)


@lru_cache(256)
def _topics(normal: str) -> Callable[[TopicPath], bool]:
    return compile_normal(normal).matches
