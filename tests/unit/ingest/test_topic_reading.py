"""Topics out of elements: remembered by the bytes that say them, within bounds."""

from __future__ import annotations

import pytest
from lxml import etree

from ingest import topic_reading
from ingest.topic_reading import TopicMemory
from topic_model.errors import ExpressionError

CONCRETE = "http://docs.oasis-open.org/wsn/t-1/TopicExpression/Concrete"


def topic(text: str) -> etree._Element:
    return etree.fromstring(f'<t xmlns:p="urn:p" Dialect="{CONCRETE}">{text}</t>')


def test_the_bytes_decide() -> None:
    memory = TopicMemory()
    assert memory.read(topic("p:a"), b"1") == "{urn:p}a"
    assert memory.read(topic("never looked at"), b"1") == "{urn:p}a"
    assert memory.read(topic("p:b"), b"2") == "{urn:p}b"


def test_what_is_refused_is_refused_again() -> None:
    memory = TopicMemory()
    for _ in range(2):
        with pytest.raises(ExpressionError):
            memory.read(topic("p:a//b"), b"1")


def test_it_holds_so_many_bytes_and_nothing_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_reading, "_REMEMBERED_BYTES", 10_000)
    memory = TopicMemory()
    for number in range(1_000):
        assert memory.read(topic(f"p:a{number}"), b"%d" % number) == f"{{urn:p}}a{number}"
        assert len(memory._topics) <= 10_000 / topic_reading._ENTRY_BYTES
    memory = TopicMemory()
    memory.read(topic("p:a"), b"x" * (topic_reading._LONGEST + 1))
    assert not memory._topics
