"""The topics that somebody may know of, as they are answered: written once for all who may know of the same ones.

A request of a few hundred bytes asks for megabytes here. So the answer is written beside the event loop, one at a time,
and kept for as long as no topic comes or goes; whoever asks meanwhile for the same waits for the same.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from lxml import etree

from ingest.access.grants import Grant
from ingest.access.rights import known_to
from ingest.access.visitor import Caller
from ingest.errors import OperationRefused
from ingest.expression_writing import expression_element
from topic_model.expressions import FULL, write_topic
from topic_model.topic_set import topic_set
from topic_model.topics import TopicPath
from topic_model.tree import TopicTree

Form = Literal["set", "expressions"]
"""The topics as a wstop:TopicSet, or the roots of all trees as wsnt:TopicExpression elements."""

# A topic set of this many topics is about 5 MB of XML. Whoever needs a larger one exports it.
_MAX_TOPICS = 50_000

# What is kept, in characters.
_KEPT = 32 * 1024 * 1024


@dataclass(frozen=True)
class _Written:
    tree: TopicTree
    version: int
    text: str


class TopicSets:
    """What was written last for each set of rights. Used on the event loop's thread only."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._written: OrderedDict[tuple[Form, Grant], _Written] = OrderedDict()
        self._under_way: dict[tuple[Form, Grant], asyncio.Task[None]] = {}
        self._one_at_a_time = asyncio.Lock()

    async def text(self, form: Form, tree: TopicTree, caller: Caller | None) -> str:
        """Every topic that is there now and that the caller may use in some way, as elements in a row.

        Raises OperationRefused when they are too many for an answer.
        """
        key = (form, known_to(caller))
        version = tree.version
        while True:
            known = self._written.get(key)
            if known is not None and known.tree is tree and known.version >= version:
                self._written.move_to_end(key)
                return known.text
            writing = self._under_way.get(key)
            if writing is None:
                writing = self._under_way[key] = asyncio.create_task(self._write(key, tree))
                writing.add_done_callback(_looked_at)
            # One client that hangs up must not cancel it for the others.
            await asyncio.shield(writing)

    async def _write(self, key: tuple[Form, Grant], tree: TopicTree) -> None:
        try:
            async with self._one_at_a_time:
                form, grant = key
                # The tree changes while the thread works: it gets a list.
                there = list(islice(tree.paths() if form == "set" else tree.roots(), _MAX_TOPICS + 1))
                version = tree.version
                if len(there) > _MAX_TOPICS:
                    raise OperationRefused(
                        f"{len(tree)} topics are too many for one answer ({_MAX_TOPICS} are not); ask the operator for "
                        "an export",
                        "ResourceUnavailableFault",
                    )
                text = await asyncio.to_thread(_WRITERS[form], there, grant)
                self._written[key] = _Written(tree, version, text)
                self._written.move_to_end(key)
                while len(self._written) > 1 and sum(len(each.text) for each in self._written.values()) > self._kept:
                    self._written.popitem(last=False)
        finally:
            del self._under_way[key]


def _looked_at(writing: asyncio.Task[None]) -> None:
    """Why it failed is told to those who wait for it, if any still do."""
    if not writing.cancelled():
        writing.exception()


def _as_set(paths: Iterable[TopicPath], grant: Grant) -> str:
    # The schema has no place for elements in no namespace. Such trees are among the topic expressions.
    wanted = sorted(path for path in paths if path.startswith("{") and grant.holds(path))
    return etree.tostring(topic_set(wanted), encoding="unicode")


def _as_expressions(roots: Iterable[TopicPath], grant: Grant) -> str:
    return "".join(_whole_tree(*write_topic(root)) for root in roots if grant.holds(root))


def _whole_tree(root: str, namespaces: Mapping[str, str]) -> str:
    return expression_element("TopicExpression", FULL, f"{root}//.", namespaces)


_WRITERS: Mapping[Form, Callable[[Iterable[TopicPath], Grant], str]] = {
    "set": _as_set,
    "expressions": _as_expressions,
}
