"""Writing of expressions, with the required prefix declarations.

A root topic in no namespace is written without a prefix, so the element must not have a default namespace in scope.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain, count

from arborcast.core.errors import ExpressionError
from arborcast.topic_model.namespaces import TOPIC_PREFIXES
from arborcast.topic_model.patterns.alternatives import Alternative, Reach, is_virtual
from arborcast.topic_model.patterns.patterns import Pattern
from arborcast.topic_model.topics import TopicPath, split_path
from arborcast.topic_model.tree.prefixes import by_namespace


def write_topic(path: TopicPath, prefixes: str = "") -> tuple[str, dict[str, str]]:
    """The Concrete expression of a topic, and its declarations by prefix.

    It uses `prefixes` (`topic_model.tree.prefixes`); a namespace without one gets its usual or a generated prefix.
    """
    chosen = _Prefixes(by_namespace(path, prefixes))
    return _write_path(path, chosen), chosen.declared()


def write_full(pattern: Pattern) -> tuple[str, dict[str, str]]:
    """The Full expression of a pattern, and its declarations by prefix. Raises ExpressionError for patterns that Full
    cannot express: topics of all namespaces."""
    prefixes = _Prefixes({})
    text = "|".join(_write_alternative(each, prefixes) for each in pattern.alternatives)
    return text, prefixes.declared()


class _Prefixes:
    def __init__(self, preferred: Mapping[str, str]) -> None:
        self._preferred = preferred
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
        others = {prefix for each, prefix in self._preferred.items() if each != namespace}
        taken = others.union(self._by_namespace.values())
        preferred = (self._preferred.get(namespace, ""), TOPIC_PREFIXES.get(namespace, ""))
        # The usual prefix of a namespace is used for no other one.
        names = (f"tns{number or ''}" for number in count(len(self._by_namespace)))
        numbered = (name for name in names if name not in TOPIC_PREFIXES.values())
        return next(prefix for prefix in chain(preferred, numbered) if prefix and prefix not in taken)


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
    if not is_virtual(alternative.anchor):
        return alternative.written(_write_path(TopicPath(alternative.anchor), prefixes), prefixes.qualified)
    if not alternative.rest and alternative.reach is Reach.SUBTREE:
        # Full has no `tns://.`; below a namespace's root every descendant is `tns://*`.
        alternative = replace(alternative, reach=Reach.DESCENDANTS)
    return alternative.written(prefixes.qualified(alternative.anchor[1:-1], ""), prefixes.qualified)
