"""Prefixes of topic namespaces. They have no meaning, but some consumers compare topics as text (Home Assistant:
`tns1:RuleEngine/…`), so a topic is sent with its original prefixes.

A notification has the prefixes of its topic's namespaces, in the order of the path, separated by spaces, with `-` for
none: `tns1 tnsaxis` for `{…/topics}Device/{…/2009/event/topics}Sensor/PIR`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from arborcast.topic_model.namespaces import TOPIC_PREFIXES
from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.topics import NCNAME, TopicPath, split_path

_PREFIX = re.compile(NCNAME)

# Reserved prefixes, and the prefix of wsnt:Topic, the element with the declarations.
_TAKEN = frozenset({"xml", "xmlns", "wsnt"})

# Prefixes that libraries (and this one) generate. A notification keeps them, a tree does not store them.
_GENERATED = re.compile(r"t?ns[0-9]*")

_NONE = "-"  # not a prefix

# Publishers can use any number of namespaces.
_MAX_PREFIXES = 1_000


def prefixes_in(text: str, path: TopicPath, namespaces: Mapping[str, str]) -> str:
    """The prefixes of a topic in an expression, by the declarations in scope; empty for none."""
    if "{" not in path:
        return ""
    used: dict[str, str] = {}
    for step in text.split("/"):
        prefix, colon, _ = step.strip().partition(":")
        if colon:
            used.setdefault(namespaces.get(prefix, ""), prefix)
    return _joined(path, used)


def by_namespace(path: TopicPath, prefixes: str) -> dict[str, str]:
    """The valid prefixes for a topic, by namespace; invalid ones from publishers are ignored."""
    if not prefixes or "{" not in path:
        return {}
    found: dict[str, str] = {}
    for namespace, prefix in zip(_namespaces(path), prefixes.split(" "), strict=False):
        if _PREFIX.fullmatch(prefix) and prefix not in _TAKEN and prefix not in found.values():
            found[namespace] = prefix
    return found


def with_prefixes(records: Iterable[TopicRecord], declared: Mapping[str, str]) -> tuple[TopicRecord, ...]:
    """The topics of a document with these declarations, by namespace: the first topic of each namespace decides."""
    news = _named(declared)
    found = []
    for record in records:
        prefixes = _joined(record.path, news) if news else ""
        if prefixes:
            for namespace in _namespaces(record.path):
                news.pop(namespace, None)
        found.append(msgspec.structs.replace(record, prefixes=prefixes) if prefixes else record)
    return tuple(found)


class KnownPrefixes:
    """The first prefix of each namespace of a tree; by default the usual one."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def unknown(self, path: TopicPath, prefixes: str) -> str:
        """The prefixes, if one of them is new; else an empty string."""
        new = _named(by_namespace(path, prefixes)).keys() - self._known.keys()
        return prefixes if new and len(self._known) < _MAX_PREFIXES else ""

    def add(self, path: TopicPath, prefixes: str) -> None:
        """Store the prefixes of namespaces without one."""
        for namespace, prefix in _named(by_namespace(path, prefixes)).items():
            if namespace not in self._known and len(self._known) < _MAX_PREFIXES:
                self._known[namespace] = prefix

    def complete(self, path: TopicPath, prefixes: str = "") -> str:
        """The prefixes, completed by the known ones."""
        if "{" not in path or (prefixes and _NONE not in prefixes):
            return prefixes
        given = by_namespace(path, prefixes)
        known = {name: prefix for name, prefix in self._known_of(path).items() if prefix not in given.values()}
        return _joined(path, known | given)

    def declarations(self, paths: Iterable[TopicPath]) -> dict[str, str]:
        """The namespaces of these topics by prefix, each prefix once."""
        found: dict[str, str] = {}
        for namespace in dict.fromkeys(namespace for path in paths if "{" in path for namespace in _namespaces(path)):
            prefix = TOPIC_PREFIXES.get(namespace) or self._known.get(namespace)
            if prefix is not None:
                found.setdefault(prefix, namespace)
        return found

    def _known_of(self, path: TopicPath) -> dict[str, str]:
        return {namespace: self._known[namespace] for namespace in _namespaces(path) if namespace in self._known}


def _named(prefixes: Mapping[str, str]) -> dict[str, str]:
    """The prefixes that a tree stores: neither usual nor generated ones."""
    return {
        namespace: prefix
        for namespace, prefix in prefixes.items()
        if namespace not in TOPIC_PREFIXES and not _GENERATED.fullmatch(prefix)
    }


def _joined(path: TopicPath, prefixes: Mapping[str, str]) -> str:
    found = [prefixes.get(namespace, _NONE) for namespace in _namespaces(path)]
    return " ".join(found) if any(prefix != _NONE for prefix in found) else ""


def _namespaces(path: TopicPath) -> list[str]:
    return [namespace for namespace in dict.fromkeys(namespace for namespace, _ in split_path(path)) if namespace]
