"""What a small request for all topics costs: the answer is written once, and not on the event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import pytest

from arborcast.ingest.elements import topics as topic_sets
from arborcast.ingest.elements.topics import Form, TopicSets
from arborcast.topic_model.grants import ALL, Caller, Grant, Identity
from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.prefixes import KnownPrefixes
from arborcast.topic_model.tree.tree import TopicTree


def tree(*paths: str) -> TopicTree:
    made = TopicTree()
    for path in paths:
        made.put(TopicRecord(TopicPath(path)))
    return made


def caller(name: str, **grants: Grant) -> Caller:
    return Caller(Identity(name), **grants)


def below(*anchors: str) -> Grant:
    return Grant(frozenset(anchors))


class Writers:
    """The real ones, which note who was written for and in which thread, and wait until they may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written: list[Grant] = []
        self.threads: set[int] = set()
        self.at_once = self.most_at_once = 0
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        for form, writer in list(topic_sets._WRITERS.items()):
            monkeypatch.setitem(topic_sets._WRITERS, form, self._noting(writer))

    def _noting(
        self, writer: Callable[[Iterable[TopicPath], Grant, KnownPrefixes], str]
    ) -> Callable[[Iterable[TopicPath], Grant, KnownPrefixes], str]:
        def write(paths: Iterable[TopicPath], grant: Grant, prefixes: KnownPrefixes) -> str:
            self.written.append(grant)
            self.threads.add(threading.get_ident())
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            self.may_go_on.wait(60)
            self.at_once -= 1
            return writer(paths, grant, prefixes)

        return write


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> Writers:
    return Writers(monkeypatch)


@pytest.mark.parametrize("form", ["set", "expressions"])
async def test_it_is_written_once_for_all_who_may_see_the_same(writers: Writers, form: Form) -> None:
    topics, sets = tree("{urn:t}a/b", "{urn:t}c", "{urn:u}d"), TopicSets()
    anna = caller("anna", subscribe=below("{urn:t}a"), publish=below("{urn:t}c"))
    bert = caller("bert", subscribe=below("{urn:t}a", "{urn:t}c"))
    answers = [await sets.text(form, topics, who) for who in (None, None, caller("olga", manage=ALL))]
    assert len(set(answers)) == 1
    assert len(writers.written) == 1, "who may see everything sees the same as where nobody is asked"
    seen = [await sets.text(form, topics, who) for who in (anna, bert, anna)]
    assert len(set(seen)) == 1
    assert len(writers.written) == 2
    assert seen[0] != answers[0]
    assert threading.get_ident() not in writers.threads, "the event loop has other things to do"


async def test_a_topic_that_comes_or_goes_is_seen_at_once(writers: Writers) -> None:
    topics, sets = tree("{urn:t}a"), TopicSets()
    assert "<c" not in await sets.text("set", topics, None)
    topics.put(TopicRecord(TopicPath("{urn:t}a/c")))
    assert "<c" in await sets.text("set", topics, None)
    topics.remove(TopicPath("{urn:t}a/c"))
    assert "<c" not in await sets.text("set", topics, None)
    assert len(writers.written) == 3


async def test_what_is_kept_is_bounded_and_the_oldest_goes(writers: Writers) -> None:
    topics, sets = tree(*(f"{{urn:t}}a{number}" for number in range(10))), TopicSets(cached=1_000)
    callers = [caller(str(number), subscribe=below(f"{{urn:t}}a{number}")) for number in range(10)]
    for who in callers:
        await sets.text("set", topics, who)
    assert 1 <= len(sets._written) < 10
    assert sum(len(each.text) for each in sets._written.values()) <= 1_000
    await sets.text("set", topics, callers[-1])
    assert len(writers.written) == 10
    await sets.text("set", topics, callers[0])
    assert len(writers.written) == 11
