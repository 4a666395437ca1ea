"""The topic set as an element tree: one element per node, `wstop:topic="true"` where the node is a topic.

A child in its parent's namespace is an element in no namespace, as in the TopicSets of real devices, so that the XPath
`//tns:a/b` finds what it seems to say. A child in another namespace is an element of that namespace.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lxml import etree

from topic_model.topics import TopicPath, last_step, parent_of

WSTOP: Final = "http://docs.oasis-open.org/wsn/t-1"
TOPIC_SET: Final = f"{{{WSTOP}}}TopicSet"
IS_TOPIC: Final = f"{{{WSTOP}}}topic"


class TopicSetBuilder:
    """Builds the element tree topic by topic, with the nodes above that are needed. It holds no text, only elements."""

    def __init__(self, prefixes: dict[str, str] | None = None) -> None:
        self.root = etree.Element(TOPIC_SET, nsmap={"wstop": WSTOP, **(prefixes or {})})
        self._elements: dict[TopicPath, etree._Element] = {}

    def add(self, path: TopicPath) -> etree._Element:
        """The element of a topic."""
        element = self._node(path)
        element.set(IS_TOPIC, "true")
        return element

    def _node(self, path: TopicPath) -> etree._Element:
        element = self._elements.get(path)
        if element is None:
            above = parent_of(path)
            parent = self.root if above is None else self._node(above)
            # A step as written in a path is already what lxml calls a tag: `{namespace}name`, or the name alone.
            element = self._elements[path] = etree.SubElement(parent, last_step(path))
        return element


def topic_set(paths: Iterable[TopicPath]) -> etree._Element:
    """The TopicSet of these topics."""
    builder = TopicSetBuilder()
    for path in paths:
        builder.add(path)
    return builder.root


def path_of(element: etree._Element) -> TopicPath:
    """The path of the node behind an element below a TopicSet that was built here."""
    steps: list[str] = []
    node: etree._Element | None = element
    while node is not None and node.tag != TOPIC_SET:
        steps.append(str(node.tag))
        node = node.getparent()
    return TopicPath("/".join(reversed(steps)))
