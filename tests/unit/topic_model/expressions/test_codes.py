"""Topics named by their codes."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.core.errors import ExpressionError
from arborcast.topic_model.expressions import parse_friendly, with_codes
from arborcast.topic_model.topics import TopicPath

CODES = {"1.4.A": "all/alarm", "A.1": "{urn:t}a/{urn:u}b", "P1": "plant", "x-y": "odd"}


def find(code: str) -> tuple[TopicPath, ...]:
    return (TopicPath(CODES[code]), TopicPath("second")) if code in CODES else ()


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("code:1.4.A", "all/alarm"),
        (" code:1.4.A//. ", "all/alarm//."),
        ("code:A.1/*", "{urn:t}a/{urn:u}b/*"),
        ("code:P1/line1/press", "plant/line1/press"),
        ("code:P1 | p:x//y|a:b", "a/b|plant|{urn:p}x//y"),
        ("code:none", "code/none"),
        ("code:none:deeper", "code/none/deeper"),
        ("code/P1", "code/P1"),
        ("a:code:P1", "a/code/P1"),
        ("//.", "//."),
    ],
)
def test_a_code_is_a_topic_where_one_has_it_and_else_what_it_was(text: str, normal: str) -> None:
    namespaces = {"p": "urn:p"}
    assert parse_friendly(with_codes(text, namespaces, find), namespaces).normal == parse_friendly(normal).normal


def test_a_declared_prefix_is_one() -> None:
    assert with_codes("code:P1", {"code": "urn:c"}, find) == "code:P1"


@pytest.mark.parametrize("text", ["code:1.5", "code:1.5//.", "a|code:", "code:1 4"])
def test_a_code_that_nobody_has_and_that_is_nothing_else_is_named(text: str) -> None:
    with pytest.raises(ExpressionError, match="no topic has the code"):
        with_codes(text, {}, find)


@given(st.text("code:|/1P. {}*", max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(ExpressionError):
        parse_friendly(with_codes(text, {}, find))
