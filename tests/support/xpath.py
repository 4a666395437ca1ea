"""Typed XPath results: lxml's annotations leave open whether a result is a list, a text or a number."""

from __future__ import annotations

from collections.abc import Mapping

from lxml import etree


def elements(root: etree._Element, path: str, namespaces: Mapping[str, str] | None = None) -> list[etree._Element]:
    """The elements at a path that selects only elements."""
    found = root.xpath(path, namespaces=dict(namespaces or {}))
    assert isinstance(found, list), f"{path} selects no node set"
    chosen = [each for each in found if isinstance(each, etree._Element)]
    assert len(chosen) == len(found), f"{path} selects other nodes, too"
    return chosen
