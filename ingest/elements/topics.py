"""Answers that list topics, and a memory of the topics of notifications. Expressions are read in `wire.topics`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Literal

from lxml import etree

from arborcast.core.recent import Recent
from arborcast.core.single_flight import SingleFlight
from arborcast.ingest.access.grants import known_to
from arborcast.topic_model.expressions import FULL, write_topic
from arborcast.topic_model.grants import Caller, Grant
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.prefixes import KnownPrefixes
from arborcast.topic_model.tree.tree import TopicTree, topic_set
from arborcast.wire.answers import expression_element
from arborcast.wire.errors import OperationRefused
from arborcast.wire.topics import PublishedTopic, read_published

Form = Literal["set", "expressions"]
"""The topics as a wstop:TopicSet, or the roots of all trees as wsnt:TopicExpression elements."""

# A topic set of this many topics is about 5 MB of XML. For a larger one there is the export.
_MAX_TOPICS = 50_000

# How much is cached, in characters of answers and rights: each change of the policy gives all clients other rights.
_CACHED = 32 * 1024 * 1024
# Of an answer, or a topic in the rights, beyond its text.
_OBJECT = 128


class TopicSets:
    """Answers with the topics of a tree, shared by clients with the same rights.

    A request of a few hundred bytes has an answer of megabytes. So an answer is built in a thread, one at a time, and
    cached until a topic is added or removed; equal requests share it. For the event loop's thread only.
    """

    def __init__(self, tree: TopicTree, cached: int = _CACHED) -> None:
        self._tree = tree
        self._written: Recent[tuple[Form, Grant], tuple[int, str]] = Recent(cached // 2, math.inf)
        self._under_way: SingleFlight[tuple[Form, Grant], None] = SingleFlight()
        self._one_at_a_time = asyncio.Lock()

    async def text(self, form: Form, caller: Caller | None) -> str:
        """All topics for which the caller has any right, as a sequence of elements.

        Raises OperationRefused for too many topics.
        """
        key = (form, known_to(caller))
        version = self._tree.version
        while True:
            known = self._written.get(key)
            if known is not None and known[0] >= version:
                return known[1]
            await self._under_way.run(key, lambda: self._write(key))

    async def _write(self, key: tuple[Form, Grant]) -> None:
        async with self._one_at_a_time:
            (form, grant), tree = key, self._tree
            # The tree changes while the thread works: it gets a list.
            there = list(islice(tree.paths() if form == "set" else tree.roots(), _MAX_TOPICS + 1))
            version = tree.version
            if len(there) > _MAX_TOPICS:
                raise OperationRefused(
                    f"{len(tree)} topics are too many for one answer ({_MAX_TOPICS} are not); ask the operator for "
                    "an export",
                    "ResourceUnavailableFault",
                )
            text = await asyncio.to_thread(_WRITERS[form], there, grant, tree.prefixes)
            size = sum(len(each) + _OBJECT for each in (text, *grant.subtrees, *grant.topics))
            self._written.put(key, (version, text), size)


def _as_set(paths: Iterable[TopicPath], grant: Grant, prefixes: KnownPrefixes) -> str:
    # The schema has no place for elements in no namespace. Such trees are among the topic expressions.
    wanted = sorted(path for path in paths if path.startswith("{") and grant.holds(path))
    return etree.tostring(topic_set(wanted, prefixes.declarations(wanted)), encoding="unicode")


def _as_expressions(roots: Iterable[TopicPath], grant: Grant, prefixes: KnownPrefixes) -> str:
    written = (write_topic(root, prefixes.complete(root)) for root in roots if grant.holds(root))
    return "".join(expression_element("TopicExpression", FULL, f"{root}//.", scope) for root, scope in written)


_WRITERS: Mapping[Form, Callable[[Iterable[TopicPath], Grant, KnownPrefixes], str]] = {
    "set": _as_set,
    "expressions": _as_expressions,
}

# Bytes of keys and values: requests must not fill the memory.
_REMEMBERED_BYTES = 4 * 1024 * 1024

_LONGEST = 2_048


class TopicMemory:
    """Topics by the bytes that name them: a publisher uses few, again and again, always written the same way."""

    def __init__(self) -> None:
        self._topics: Recent[bytes, PublishedTopic] = Recent(_REMEMBERED_BYTES)

    def read(
        self, element: etree._Element, identity: bytes, unchecked: dict[bytes, PublishedTopic], *, colons: bool = False
    ) -> PublishedTopic:
        """The topic of the element with this identity (Source.identity). Raises ExpressionError.

        One that can be cached and is not is added to `unchecked`, for `remember`. `colons`: as for `concrete_topic`.
        """
        if colons:
            identity = b":" + identity  # elsewhere the same bytes have another meaning
        topic = self._topics.get(identity) or unchecked.get(identity)
        if topic is None:
            topic = read_published(element, colons)
            # With large declarations around, thousands of topics of one request would exhaust the memory.
            if len(identity) <= _LONGEST:
                unchecked[identity] = topic
        return topic

    def remember(self, checked: Mapping[bytes, PublishedTopic]) -> None:
        """Cache topics after their publisher was authorised: a refused request leaves nothing."""
        for identity, topic in checked.items():
            self._topics.put(identity, topic, len(identity) + len(topic.path) + len(topic.prefixes))
