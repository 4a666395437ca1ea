"""Expressions that we write: text and the prefix declarations that it needs.

A root topic in no namespace is written without a prefix, so it must not be put where a default namespace is declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, count

from arborcast.core.errors import ExpressionError
from arborcast.topic_model.namespaces import TOPIC_PREFIXES
from arborcast.topic_model.patterns.alternatives import Alternative, Reach, is_virtual
from arborcast.topic_model.patterns.patterns import Pattern
from arborcast.topic_model.topics import TopicPath, split_path
from arborcast.topic_model.tree.prefixes import by_namespace


def write_topic(path: TopicPath, prefixes: str = "") -> tuple[str, dict[str, str]]:
    """The Concrete expression of a topic, and its declarations by prefix.

    With these `prefixes` (`topic_model.tree.prefixes`); a namespace without one has the one that is usual, or ours.
    """
    chosen = _Prefixes(by_namespace(path, prefixes))
    return _write_path(path, chosen), chosen.declared()


def write_full(pattern: Pattern) -> tuple[str, dict[str, str]]:
    """The Full expression of a pattern, and its declarations by prefix.

    Raises ExpressionError for what Full cannot say: topics of all namespaces at once.
    """
    prefixes = _Prefixes({})
    text = "|".join(_write_alternative(each, prefixes) for each in pattern.alternatives)
    return text, prefixes.declared()


class _Prefixes:
    def __init__(self, wanted: Mapping[str, str]) -> None:
        self._wanted = wanted
        self._by_namespace: dict[str, str] = {}

    def qualified(self, namespace: str, name: str) -> str:
        if not namespace:
            return name
        prefix = self._by_namespace.get(namespace)
        if prefix is None:
            prefix = self._by_namespace[namespace] = self._choose(namespace)
        return f"{prefix}:{name}"

    def declared(self) -> dict[str, str]:
        return {prefix: namespace for namespace, prefix in self._by_namespace.items()}

    def _choose(self, namespace: str) -> str:
        others = {prefix for each, prefix in self._wanted.items() if each != namespace}
        taken = others.union(self._by_namespace.values())
        wanted = (self._wanted.get(namespace, ""), TOPIC_PREFIXES.get(namespace, ""))
        # Those that are usual for some namespace stand for no other.
        names = (f"tns{number or ''}" for number in count(len(self._by_namespace)))
        numbered = (name for name in names if name not in TOPIC_PREFIXES.values())
        return next(prefix for prefix in chain(wanted, numbered) if prefix and prefix not in taken)


def _write_path(path: TopicPath, prefixes: _Prefixes) -> str:
    steps: list[str] = []
    inherited = ""
    for namespace, name in split_path(path):
        steps.append(name if namespace == inherited else prefixes.qualified(namespace, name))
        inherited = namespace
    return "/".join(steps)


def _write_alternative(alternative: Alternative, prefixes: _Prefixes) -> str:
    if not alternative.anchor:
        raise ExpressionError(f"the Full dialect cannot express {alternative.normal!r}: topics of all namespaces")
    virtual = is_virtual(alternative.anchor)
    if virtual:
        parts = [prefixes.qualified(alternative.anchor[1:-1], "")]
    else:
        parts = [_write_path(TopicPath(alternative.anchor), prefixes)]
    for step in alternative.rest:
        if len(parts) > 1 or not virtual or step.axis.value == "//":
            parts.append(step.axis.value)
        name = "*" if step.name is None else step.name
        parts.append(name if step.namespace is None else prefixes.qualified(step.namespace, name))
    if not virtual or alternative.rest:
        parts.append(alternative.reach.value)
    else:
        # Below a namespace's root, every descendant is `tns://*` (Full has no `tns://.`) and every child `tns:*`.
        parts.append("*" if alternative.reach is Reach.CHILDREN else "//*")
    return "".join(parts)
