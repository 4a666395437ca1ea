"""Topics out of elements: remembered by the bytes that say them, within bounds."""

from __future__ import annotations

import pytest
from lxml import etree

from arborcast.ingest.elements import topics
from arborcast.ingest.elements.topics import TopicMemory
from arborcast.topic_model.topics import TopicPath
from arborcast.wire.topics import PublishedTopic

CONCRETE = "http://docs.oasis-open.org/wsn/t-1/TopicExpression/Concrete"


def topic(text: str) -> etree._Element:
    return etree.fromstring(f'<t xmlns:p="urn:p" Dialect="{CONCRETE}">{text}</t>')


def read(memory: TopicMemory, text: str, identity: bytes) -> TopicPath:
    """The topic of a publisher that may publish to it."""
    unchecked: dict[bytes, PublishedTopic] = {}
    found = memory.read(topic(text), identity, unchecked)
    memory.remember(unchecked)
    return found.path


def test_the_bytes_decide() -> None:
    memory = TopicMemory()
    read(memory, "p:a", b"1")
    assert read(memory, "never looked at", b"1") == "{urn:p}a"
    assert read(memory, "p:b", b"2") == "{urn:p}b"


def test_only_what_was_checked_is_remembered() -> None:
    memory = TopicMemory()
    unchecked: dict[bytes, PublishedTopic] = {}
    assert memory.read(topic("p:mine"), b"1", unchecked).path == "{urn:p}mine"
    assert memory.read(topic("looked up within the request"), b"1", unchecked).path == "{urn:p}mine"
    assert memory.read(topic("p:theirs"), b"1", {}) == ("{urn:p}theirs", "p")


def test_it_holds_so_many_bytes_and_nothing_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_REMEMBERED_BYTES", 10_000)
    memory = TopicMemory()
    for number in range(1_000):
        assert read(memory, f"p:a{number}", b"%d" % number) == f"{{urn:p}}a{number}"
        assert len(memory._topics) <= 2 * 10_000 / 200
    memory = TopicMemory()
    read(memory, "p:a", b"x" * (topics._LONGEST + 1))
    assert not memory._topics
