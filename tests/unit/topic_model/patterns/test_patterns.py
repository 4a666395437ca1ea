"""Patterns against a naive reference, and the laws of their normal form.

The reference computes a Full topic expression naively, from the table of the standard: node sets over a tree of
the topic and its ancestors. It shares nothing with `topic_model.patterns`. A topic is a tuple of (namespace, name); an
expression is (root namespace, steps), each step a separator and a test: `*`, `.`, or a name with an optional namespace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from arborcast.core.errors import ExpressionError
from arborcast.topic_model import expressions
from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.topics import make_path
from tests.support.routing import topic_steps

Topic = tuple[tuple[str, str], ...]


class Step(NamedTuple):
    """`separator` is `/` or `//`; `namespace` None is a name without a prefix."""

    separator: str
    namespace: str | None
    name: str


def naive_matches(root_namespace: str, steps: Sequence[Step], topic: Topic) -> bool:
    """Whether the expression selects the topic."""
    if topic[0][0] != root_namespace:
        return False  # in the tree of another namespace
    tree = [topic[:level] for level in range(len(topic) + 1)]  # () is the root above the root topics
    selected: set[Topic] = {()}
    for step in steps:
        selected = {found for node in selected for found in _from(node, step, tree, root_namespace)}
    return topic in selected


def _from(node: Topic, step: Step, tree: Sequence[Topic], root_namespace: str) -> set[Topic]:
    strictly_below = {other for other in tree if len(other) > len(node) and other[: len(node)] == node}
    if step.name == ".":
        return {node} if step.separator == "/" else {node, *strictly_below}
    within = strictly_below if step.separator == "//" else {n for n in strictly_below if len(n) == len(node) + 1}
    if step.name == "*":
        return within
    return {n for n in within if n[-1] == (_namespace_for(n, step, root_namespace), step.name)}


def _namespace_for(candidate: Topic, step: Step, root_namespace: str) -> str:
    if step.namespace is not None:
        return step.namespace
    return candidate[-2][0] if len(candidate) > 1 else root_namespace


PREFIXES = {"t": "urn:t", "x": "http://example.org/x/y"}
NAMESPACES = ["", *PREFIXES.values()]
PREFIX_OF = {namespace: prefix for prefix, namespace in PREFIXES.items()}

# Few names and namespaces, so that expressions and topics often meet.
_names = st.sampled_from("abc")
_topics = topic_steps("abc", NAMESPACES, 6).map(tuple)


_steps = st.one_of(
    st.builds(Step, st.sampled_from(["/", "//"]), st.none(), st.one_of(_names, st.sampled_from(["*", "."]))),
    st.builds(Step, st.sampled_from(["/", "//"]), st.sampled_from(list(PREFIXES.values())), _names),
)


@st.composite
def _expressions(draw: st.DrawFn) -> tuple[str, list[Step]]:
    namespace = draw(st.sampled_from(NAMESPACES))
    first = Step(draw(st.sampled_from(["/", "//"])), None, draw(st.one_of(_names, st.just("*"))))
    return namespace, [first, *draw(st.lists(_steps, max_size=5))]


def _full_text(expression: tuple[str, list[Step]]) -> str:
    namespace, (first, *others) = expression
    prefix = f"{PREFIX_OF[namespace]}:" if namespace else ""
    parts = [prefix + ("//" if first.separator == "//" else "") + first.name]
    for step in others:
        qualifier = f"{PREFIX_OF[step.namespace]}:" if step.namespace else ""
        parts.append(f"{step.separator}{qualifier}{step.name}")
    return "".join(parts)


@given(st.lists(_expressions(), min_size=1, max_size=4), st.lists(_topics, min_size=1, max_size=8))
@example(
    [("", [Step("/", None, "a"), Step("//", None, "b"), Step("//", None, "b"), Step("/", None, "*")])], [(("", "a"),)]
)
def test_patterns_against_the_naive_reference(alternatives: list[tuple[str, list[Step]]], topics: list[Topic]) -> None:
    text = "|".join(map(_full_text, alternatives))
    pattern = parse_normal(expressions.parse(text, expressions.FULL, PREFIXES).normal)
    for topic in topics:
        expected = any(naive_matches(namespace, steps, topic) for namespace, steps in alternatives)
        assert pattern.matches(make_path(topic)) == expected, (text, pattern.normal, topic)


@given(st.lists(_expressions(), min_size=1, max_size=4))
def test_the_normal_form_is_a_fixed_point_for_any_order(alternatives: list[tuple[str, list[Step]]]) -> None:
    texts = [_full_text(alternative) for alternative in alternatives]
    pattern = parse_normal(expressions.parse("|".join(texts), expressions.FULL, PREFIXES).normal)
    assert parse_normal(pattern.normal) == pattern
    assert expressions.parse("|".join(texts[::-1] + texts), expressions.FULL, PREFIXES).normal == pattern.normal
    assert "|".join(alternative.normal for alternative in pattern.alternatives) == pattern.normal
    text, namespaces = expressions.write_full(pattern)
    assert expressions.parse(text, expressions.FULL, namespaces).normal == pattern.normal


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("//*", "//."),
        ("{urn:t}//*", "{urn:t}//."),
        ("{urn:t}a/{urn:t}b", "{urn:t}a/b"),
        ("{}a/b", "a/b"),
        ("*|{urn:t}a|{urn:t}*|{}*|{urn:t}a/b", "*|{urn:t}a/b"),
        ("//.|a|{urn:t}b//c", "//."),
        ("{urn:t}//.|{urn:t}a/b//c|x", "x|{urn:t}//."),
        ("a//.|a/b//c", "a//."),
        ("a//*|a/b/*|a", "a//."),
        ("a//{urn:t}b/{urn:t}c", "a//{urn:t}b/c"),
        ("a/{urn:t}b/*/{urn:t}c", "a/{urn:t}b/*/{urn:t}c"),
    ],
)
def test_normal_forms(written: str, normal: str) -> None:
    assert parse_normal(written).normal == normal


@pytest.mark.parametrize(
    "text", ["", "{urn:t}", "{}", ".", "{urn:t}.", "/a", "a//", "tns:a", "{urn:t", "a/{x}*", "xpath:{}", "{urn:t}a/{}b"]
)
def test_texts_that_are_no_normal_form(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse_normal(text)


def test_many_wildcards_cost_no_backtracking() -> None:
    # A matcher that tries every split of 63 levels among 16 wildcards would not end.
    pattern = parse_normal("a" + "//b" * 15 + "//c")
    assert not pattern.matches(make_path([("", "a")] + [("", "b")] * 63))
    assert pattern.matches(make_path([("", "a")] + [("", "b")] * 62 + [("", "c")]))
