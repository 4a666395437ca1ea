"""Topics from elements, cached by their bytes; documents of all topics, serialized once per view."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import pytest
from lxml import etree

from arborcast.ingest.elements import topics
from arborcast.ingest.elements.topics import Form, TopicMemory, TopicSets
from arborcast.topic_model.grants import ALL, Caller, Grant, Identity
from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.prefixes import KnownPrefixes
from arborcast.topic_model.tree.tree import TopicTree
from arborcast.wire.topics import PublishedTopic

Writer = Callable[[Iterable[TopicPath], Grant, KnownPrefixes], str]

CONCRETE = "http://docs.oasis-open.org/wsn/t-1/TopicExpression/Concrete"


def topic(text: str) -> etree._Element:
    return etree.fromstring(f'<t xmlns:p="urn:p" Dialect="{CONCRETE}">{text}</t>')


def read(memory: TopicMemory, text: str, identity: bytes) -> TopicPath:
    """The topic, for a publisher with the right to publish to it."""
    unchecked: dict[bytes, PublishedTopic] = {}
    found = memory.read(topic(text), identity, unchecked)
    memory.remember(unchecked)
    return found.path


def test_checked_topics_are_cached_by_their_bytes() -> None:
    memory = TopicMemory()
    read(memory, "p:a", b"1")
    assert read(memory, "not read", b"1") == "{urn:p}a"
    assert read(memory, "p:b", b"2") == "{urn:p}b"
    unchecked: dict[bytes, PublishedTopic] = {}
    assert memory.read(topic("p:mine"), b"3", unchecked).path == "{urn:p}mine"
    assert memory.read(topic("found within the request"), b"3", unchecked).path == "{urn:p}mine"
    assert memory.read(topic("p:theirs"), b"3", {}) == ("{urn:p}theirs", "p")


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_REMEMBERED_BYTES", 10_000)
    memory = TopicMemory()
    for number in range(1_000):
        assert read(memory, f"p:a{number}", b"%d" % number) == f"{{urn:p}}a{number}"
        assert len(memory._topics) <= 2 * 10_000 / 200
    unchecked: dict[bytes, PublishedTopic] = {}
    assert memory.read(topic("p:a"), b"x" * (topics._LONGEST + 1), unchecked).path == "{urn:p}a"
    assert unchecked == {}


def tree(*paths: str) -> TopicTree:
    made = TopicTree()
    for path in paths:
        made.put(TopicRecord(TopicPath(path)))
    return made


def caller(name: str, **grants: Grant) -> Caller:
    return Caller(Identity(name), **grants)


def below(*anchors: str) -> Grant:
    return Grant(frozenset(anchors))


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The thread of each serialization."""
    found: list[int] = []
    for form, writer in list(topics._WRITERS.items()):

        def noted(paths: Iterable[TopicPath], grant: Grant, prefixes: KnownPrefixes, writer: Writer = writer) -> str:
            found.append(threading.get_ident())
            return writer(paths, grant, prefixes)

        monkeypatch.setitem(topics._WRITERS, form, noted)
    return found


@pytest.mark.parametrize("form", ["set", "expressions"])
async def test_equal_views_share_a_document(threads: list[int], form: Form) -> None:
    sets = TopicSets(tree("{urn:t}a/b", "{urn:t}c", "{urn:u}d"))
    anna = caller("anna", subscribe=below("{urn:t}a"), publish=below("{urn:t}c"))
    bert = caller("bert", subscribe=below("{urn:t}a", "{urn:t}c"))
    whole = {await sets.text(form, viewer) for viewer in (None, None, caller("olga", manage=ALL))}
    assert (len(whole), len(threads)) == (1, 1)
    parts = {await sets.text(form, viewer) for viewer in (anna, bert, anna)}
    assert (len(parts), len(threads)) == (1, 2)
    assert parts != whole
    assert threading.get_ident() not in threads, "not on the event loop"


async def test_documents_follow_changes_of_topics(threads: list[int]) -> None:
    there = tree("{urn:t}a")
    sets = TopicSets(there)
    found = ["<c" in await sets.text("set", None)]
    there.put(TopicRecord(TopicPath("{urn:t}a/c")))
    found.append("<c" in await sets.text("set", None))
    there.remove(TopicPath("{urn:t}a/c"))
    found.append("<c" in await sets.text("set", None))
    assert (found, len(threads)) == ([False, True, False], 3)


async def test_the_number_of_cached_documents_is_bounded(threads: list[int]) -> None:
    sets = TopicSets(tree(*(f"{{urn:t}}a{number}" for number in range(10))), cached=1_000)
    callers = [caller(str(number), subscribe=below(f"{{urn:t}}a{number}")) for number in range(10)]
    for viewer in callers:
        await sets.text("set", viewer)
    assert 1 <= len(sets._written) < 10
    kept = [*sets._written._young.values(), *sets._written._old.values()]
    assert sum(len(text) for (_, text), _ in kept) <= 1_000
    for viewer, written in ((callers[-1], 10), (callers[0], 11)):
        await sets.text("set", viewer)
        assert len(threads) == written


@pytest.mark.usefixtures("threads")
async def test_the_rights_count_among_the_cached_documents() -> None:
    sets = TopicSets(tree("{urn:t}a"), cached=10_000)
    for number in range(10):
        viewer = caller(str(number), subscribe=below(*(f"{{urn:u}}{number}/{each}" for each in range(20))))
        await sets.text("expressions", viewer)
    assert len(sets._written) < 5
