"""Canonical topic paths: validity, splitting, and namespaces full of slashes."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from arborcast.core.errors import ExpressionError, TopicError
from arborcast.topic_model import expressions, topics
from arborcast.topic_model.topics import (
    MAX_DEPTH,
    MAX_PATH_LENGTH,
    Step,
    ancestors,
    is_namespace,
    last_step,
    make_path,
    parent_of,
    parse_colon_path,
    parse_path,
    split_path,
)
from tests.support.routing import topic_steps

H = "http://example.org/topics/"
"""A namespace with slashes, one of them at its end."""


@pytest.mark.parametrize(
    ("steps", "path"),
    [
        ([("", "a")], "a"),
        ([("", "a"), ("", "b")], "a/b"),
        ([("urn:t", "a"), ("urn:t", "b")], "{urn:t}a/b"),
        ([("urn:t", "a"), ("urn:x", "b"), ("urn:x", "c"), ("urn:t", "d")], "{urn:t}a/{urn:x}b/c/{urn:t}d"),
        ([("", "a"), ("urn:x", "b"), ("urn:x", "c")], "a/{urn:x}b/c"),
        ([(H, "a"), (H, "b")], f"{{{H}}}a/b"),
        ([("", "Überwachung"), ("", "火災"), ("", "_1.2-3")], "Überwachung/火災/_1.2-3"),
    ],
)
def test_paths_are_joined_and_split(steps: list[Step], path: str) -> None:
    assert make_path(steps) == path
    assert list(split_path(path)) == steps
    assert parse_path(path) == path


NO_NAME, NO_URI = "not a legal topic name", "not a valid URI"


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([], "at least one name"),
        *(([("", name)], NO_NAME) for name in ("", "1a", "a b", "a:b", "a/b", "a\n", "a\x00", "*", ".", "\ud800")),
        *(([(uri, "a")], NO_URI) for uri in ("urn:t}", "urn: t", "urn:t|", "urn:t\x01", "urn:\udcff")),
        ([("urn:t", "a"), ("", "b")], "no namespace cannot be below"),
        ([("", "a")] * (MAX_DEPTH + 1), "64 levels deep, this one is 65"),
        ([("", "a" * MAX_PATH_LENGTH), ("", "b")], "4096 characters long, this one is 4098"),
    ],
)
def test_steps_that_make_no_path(steps: list[Step], why: str) -> None:
    with pytest.raises(TopicError, match=why):
        make_path(steps)


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("{urn:t}a/{urn:t}b", "{urn:t}a/b"),
        ("{}a/b", "a/b"),
        ("{}a/{}b", "a/b"),
        ("{urn:t}a/{urn:x}b/{urn:x}c", "{urn:t}a/{urn:x}b/c"),
    ],
)
def test_untrusted_paths_are_normalised(written: str, canonical: str) -> None:
    assert parse_path(written) == canonical


@pytest.mark.parametrize(
    "text",
    [
        *("", "/", "/a", "a/", "a//b", "a b", " a", "a\n", "a/*", "a|b", "tns:a", "a\x00"),
        *("{urn:t}", "{urn:t}/a", "{urn:t", "urn:t}a", "{a}{b}c", "{urn:t}a/{}b"),
        pytest.param("x" * 10_000_000, id="10 MB"),
    ],
)
def test_texts_that_are_no_paths(text: str) -> None:
    with pytest.raises(TopicError) as caught:
        parse_path(text)
    assert len(str(caught.value)) < 500


@given(topic_steps(["a", "b-1", "Ω", "x.y"], ["", "urn:t", H, "http://example.org", "/", "#frag/ment?"], 8))
def test_paths_can_be_split(steps: list[Step]) -> None:
    path = make_path(steps)
    assert list(split_path(path)) == steps
    assert list(ancestors(path)) == [make_path(steps[:level]) for level in range(len(steps) - 1, 0, -1)]
    parent = parent_of(path)
    assert path == (last_step(path) if parent is None else f"{parent}/{last_step(path)}")


@given(st.text(alphabet="ab/{}:urn|*. \n\x00", max_size=20))
def test_any_text_is_a_path_or_refused(text: str) -> None:
    with contextlib.suppress(TopicError):
        path = parse_path(text)
        assert parse_path(path) == path


@pytest.mark.parametrize(
    ("text", "path"),
    [("ALL:ALARM:ALARM1", "ALL/ALARM/ALARM1"), ("all", "all"), ("警报:火", "警报/火"), (" a :\n b\t", "a/b")],
)
def test_colon_paths(text: str, path: str) -> None:
    assert parse_colon_path(text) == path


@pytest.mark.parametrize(
    "text", ["", ":", "a:", ":a", "a::b", "a/b", "a: ", "a b:c", "a:*", pytest.param("a:" * 5_000_000, id="10 MB")]
)
def test_illegal_colon_paths(text: str) -> None:
    with pytest.raises(TopicError):
        parse_colon_path(text)


@given(st.text(alphabet="ab1:/?#[]@%2.-+!é{}|~_ ", max_size=12))
def test_namespaces_can_be_written_as_xml(text: str) -> None:
    if text and is_namespace(text):
        element = etree.SubElement(etree.Element("root"), f"{{{text}}}a")
        assert etree.fromstring(etree.tostring(element)).tag == f"{{{text}}}a"


@pytest.mark.parametrize(("more", "why"), [("", "."), ("x", "not a valid URI")], ids=["longest", "too long"])
def test_a_namespace_is_checked_once(more: str, why: str) -> None:
    """An expression may name a namespace sixteen thousand times."""
    namespace = "urn:" + "x" * (MAX_PATH_LENGTH - 4) + more
    text = "|".join("/".join(["p:a"] * 60) + f"{number}" for number in range(200))
    before = topics._is_legal_namespace.cache_info().misses
    with pytest.raises(ExpressionError, match=why):  # too long for a path
        expressions.parse(text, expressions.FULL, {"p": namespace})
    assert topics._is_legal_namespace.cache_info().misses <= before + 1
