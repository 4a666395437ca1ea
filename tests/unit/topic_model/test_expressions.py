"""Every dialect by a handwritten table of expressions; limits; friendly notations; written expressions."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.core.errors import ExpressionError, MultipleTopics, UnknownDialect
from arborcast.topic_model import expressions
from arborcast.topic_model.expressions import CONCRETE, CONCRETE_SET, FULL, SIMPLE, XPATH
from arborcast.topic_model.patterns import patterns
from arborcast.topic_model.patterns.patterns import EVERYTHING, Pattern
from arborcast.topic_model.topics import TopicPath

NAMESPACES = {"tns": "urn:t", "x": "urn:x", "wstop": "http://docs.oasis-open.org/wsn/t-1"}
DIALECTS = {"simple": SIMPLE, "concrete": CONCRETE, "full": FULL, "set": CONCRETE_SET, "none": None, "legacy": SIMPLE}
CORPUS = tomllib.loads((Path(__file__).parent / "expressions.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "entry", CORPUS["legal"], ids=lambda entry: f"{entry.get('dialect', 'full')} {entry['text']!r}"
)
def test_legal_expression(entry: dict[str, Any]) -> None:
    dialect = entry.get("dialect", "full")
    namespaces = {**NAMESPACES, **entry.get("namespaces", {})}
    parsed = expressions.parse(entry["text"], DIALECTS[dialect], namespaces, legacy=dialect == "legacy")
    assert parsed.normal == entry["normal"]
    pattern = expressions.compile_normal(parsed.normal)
    assert isinstance(pattern, Pattern)
    assert pattern.normal == entry["normal"]
    assert pattern == patterns._parse_normal(parsed.normal)
    assert [topic for topic in entry["matches"] if not pattern.matches(topic)] == []
    assert [topic for topic in entry["misses"] if pattern.matches(topic)] == []


@pytest.mark.parametrize(("text", "normal"), CORPUS["equal"].items())
def test_equal_sets_have_one_normal_form(text: str, normal: str) -> None:
    assert expressions.parse(text, FULL, NAMESPACES).normal == normal


INVALID = "InvalidTopicExpressionFault"


@pytest.mark.parametrize(
    ("text", "dialect", "at"),
    [(text, dialect, at) for dialect, texts in CORPUS["illegal"].items() for text, at in texts.items()],
)
def test_illegal_expression(text: str, dialect: str, at: int) -> None:
    with pytest.raises(ExpressionError, match=f"position {at}") as caught:
        expressions.parse(text, DIALECTS[dialect], NAMESPACES)
    assert (type(caught.value), caught.value.fault, caught.value.position) == (ExpressionError, INVALID, at)


@pytest.mark.parametrize(
    ("text", "dialect", "legacy", "fault"),
    [
        *((text, SIMPLE, True, INVALID) for text in ("all:alarm1:", "all/alarm", "all::alarm")),
        ("tns:a", "urn:example:dialect", False, "TopicExpressionDialectUnknownFault"),
        ("tns:a", SIMPLE.replace("Simple", "simple"), False, "TopicExpressionDialectUnknownFault"),
    ],
)
def test_faults_of_legacy_expressions_and_unknown_dialects(text: str, dialect: str, legacy: bool, fault: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        expressions.parse(text, dialect, NAMESPACES, legacy=legacy)
    assert caught.value.fault == fault


def test_the_error_quotes_only_the_text_around_it() -> None:
    text = "tns:" + "/".join(f"step{number}" for number in range(30)) + "/!" + "/x" * 20
    with pytest.raises(ExpressionError) as caught:
        expressions.parse(text, FULL, NAMESPACES)
    assert "step29/!" in str(caught.value)
    assert "step1/" not in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("|".join(f"t{number}" for number in range(10_000)), "256 alternatives"),
        ("/".join(["a"] * 1_000), "64 steps"),
        ("a" + "//b" * 17, "// 16 times"),
        ("a/" + "b" * 5_000, "4096 characters"),
        ("x" * 65_537, "65536 characters"),
        ("|".join(f"l:t{number}" for number in range(100)), "namespaces written out"),
    ],
    ids=["alternatives", "depth", "descendants", "path", "length", "namespaces"],
)
def test_the_error_names_the_limit(text: str, bound: str) -> None:
    with pytest.raises(ExpressionError, match=bound):
        expressions.parse(text, FULL, {"l": "urn:" + "x" * 3_000})


@pytest.mark.parametrize(
    ("text", "sign"),
    [("|".join(f"t{number}" for number in range(256)), "|"), ("/".join(["a"] * 64), "/"), ("a" + "//b" * 16, "//")],
)
def test_expressions_at_the_limits(text: str, sign: str) -> None:
    assert expressions.parse(text, FULL, {}).normal.count(sign) == text.count(sign)


@pytest.mark.parametrize("dialect", [SIMPLE, CONCRETE, FULL, CONCRETE_SET, XPATH])
def test_ten_megabytes_are_refused_for_their_length(dialect: str) -> None:
    text = "tns:a\0" * 2_000_000  # illegal at position 5, which is not read
    with pytest.raises(ExpressionError, match="characters long, this one is 12000000") as caught:
        expressions.parse(text, dialect, {})
    assert len(str(caught.value)) < 500


def test_a_filter_keeps_only_used_declarations() -> None:
    parsed = expressions.parse("tns:a/b|c", FULL, {**NAMESPACES, "": "urn:default"})
    assert parsed.namespaces == {"tns": "urn:t", "": "urn:default"}
    assert expressions.parse(parsed.text, parsed.dialect, parsed.namespaces) == parsed


@pytest.mark.parametrize(
    ("text", "dialect", "topic"),
    [
        ("tns:a", SIMPLE, "{urn:t}a"),
        ("x:CameraPlatform/VMD/Profile1", SIMPLE, "{urn:x}CameraPlatform/VMD/Profile1"),
        ("\n tns:a/b/x:c \n", CONCRETE, "{urn:t}a/b/{urn:x}c"),
        ("tns:RuleEngine/Motion//.", CONCRETE_SET, "{urn:t}RuleEngine/Motion"),
        ("tns:a", f"\n {CONCRETE} ", "{urn:t}a"),
    ],
)
def test_topic_of_a_notification(text: str, dialect: str | None, topic: str) -> None:
    assert expressions.concrete_topic(text, dialect, NAMESPACES) == topic


_texts = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", " ", "tns:", "x:", "q:", "long:", "bad:", "\n"]),
    st.sampled_from(
        ["a", "a/b", "a/x:b", "a/./b", "a/", "1", "a b", "*", "/".join("a" * 64), "/".join("a" * 65), "Ω/b\n"]
    ),
    st.sampled_from(["", " ", "\t", "/", "/tns:c", "\u00a0"]),
)


def _or_none(read: Callable[[], str]) -> str | None:
    try:
        return read()
    except ExpressionError:
        return None


@given(_texts, st.sampled_from([None, CONCRETE, FULL, CONCRETE_SET]), st.sampled_from(["", "urn:d", "urn:{}"]))
def test_topic_of_a_notification_against_a_filter(text: str, dialect: str | None, default: str) -> None:
    namespaces = {**NAMESPACES, "": default, "long": "urn:" + "x" * 4_090, "bad": "urn: "}
    expected = _or_none(lambda: expressions.parse(text, FULL if dialect == FULL else CONCRETE, namespaces).normal)
    found = _or_none(lambda: expressions.concrete_topic(text, dialect, namespaces))
    wild = expected is not None and ("*" in expected or "//" in expected)  # no namespace here has a slash
    assert found == (None if wild else expected)


def test_topic_of_a_legacy_notification() -> None:
    assert expressions.concrete_topic("all:alarm:alarm1", SIMPLE, {}, legacy=True) == "all/alarm/alarm1"


@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        *((text, FULL) for text in ("tns:a//.", "tns:a|tns:b", "tns:a/*", "tns:*")),
        *(("tns:a|tns:b", CONCRETE_SET), ("//a", XPATH)),
    ],
)
def test_the_topic_of_a_notification_must_be_single(text: str, dialect: str) -> None:
    with pytest.raises(MultipleTopics) as caught:
        expressions.concrete_topic(text, dialect, NAMESPACES)
    assert caught.value.fault == "MultipleTopicsSpecifiedFault"


@pytest.mark.parametrize(
    ("text", "dialect", "error"),
    [
        ("tns:a//.", SIMPLE, ExpressionError),
        ("tns:a//b", CONCRETE, ExpressionError),
        ("q:a", None, ExpressionError),
        ("", None, ExpressionError),
        ("tns:a", "urn:none", UnknownDialect),
    ],
)
def test_illegal_topic_of_a_notification(text: str, dialect: str | None, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        expressions.concrete_topic(text, dialect, NAMESPACES)
    assert not isinstance(caught.value, MultipleTopics)


@pytest.mark.parametrize(
    ("typed", "normal"),
    [
        ("a/b//.", "a/b//."),
        ("ALL:ALARM:ALARM1", "ALL/ALARM/ALARM1"),
        ("ALL:ALARM//.", "ALL/ALARM//."),
        ("ALL:ALARM/*", "ALL/ALARM/*"),
        ("a:b", "a/b"),
        ("a:b/c", "a/b/c"),
        ("a:b:c/d//.", "a/b/c/d//."),
        ("a:b|c:d/e | tns:f", "a/b|c/d/e|{urn:t}f"),
        ("tns:a//.", "{urn:t}a//."),
        ("tns:a/b", "{urn:t}a/b"),
        ("tns:a", "{urn:t}a"),
        ("tns:a:b", "tns/a/b"),
        ("{urn:t}a/b", "{urn:t}a/b"),
        ("{http://example.org/t}a//.", "{http://example.org/t}a//."),
        ("{urn:t}//.", "{urn:t}//."),
        ("tns://*", "{urn:t}//."),
        ("a|tns:b", "a|{urn:t}b"),
        ("//.", EVERYTHING),
        (" a ", "a"),
    ],
)
def test_friendly_forms(typed: str, normal: str) -> None:
    parsed = expressions.parse_friendly(typed, NAMESPACES)
    assert parsed.normal == normal
    if normal != EVERYTHING:
        assert expressions.parse(parsed.text, parsed.dialect, parsed.namespaces).normal == normal


@pytest.mark.parametrize("head", ["q:a", "tns:a", "q:a:b", "tns:a:b"])
def test_a_prefix_is_recognized_before_any_name(head: str) -> None:
    normal = expressions.parse_friendly(head, NAMESPACES).normal
    for reach in ("/x", "//.", "/*", "/x//.", "//x"):
        assert expressions.parse_friendly(head + reach, NAMESPACES).normal == normal + reach


@pytest.mark.parametrize("typed", ["", "a//", "a//q:b", "q:a//q:b", "{urn:t}", "a::b", "{urn:t}a/tns:b", "/a"])
def test_unfriendly_forms(typed: str) -> None:
    with pytest.raises(ExpressionError):
        expressions.parse_friendly(typed, NAMESPACES)


def test_expressions_beyond_full_are_refused() -> None:
    with pytest.raises(ExpressionError, match="all namespaces"):
        expressions.parse_friendly("//{urn:t}b")


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
        ("code/P1", "code/P1"),
        ("a:code:P1", "a/code/P1"),
        ("//.", "//."),
    ],
)
def test_topics_by_their_codes(text: str, normal: str) -> None:
    namespaces = {"p": "urn:p"}
    found = expressions.parse_friendly(expressions.with_codes(text, namespaces, find), namespaces)
    assert found.normal == expressions.parse_friendly(normal).normal
    assert expressions.with_codes("code:P1", {"code": "urn:c"}, find) == "code:P1", "a declared prefix"


@pytest.mark.parametrize("text", ["code:1.5", "code:1.5//.", "a|code:", "code:1 4", "code:none", "code:none:deeper"])
def test_unknown_codes_are_named(text: str) -> None:
    with pytest.raises(ExpressionError, match="no topic has the code"):
        expressions.with_codes(text, {}, find)


@given(st.text("code:|/1P. {}*", max_size=20))
def test_any_text_with_codes_is_read_or_refused(text: str) -> None:
    with suppress(ExpressionError):
        expressions.parse_friendly(expressions.with_codes(text, {}, find))


def test_an_expression_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    filters = [expressions.parse(f"a{n}//b/*|c{n}/./d//.", FULL, {}) for n in range(3)]
    parsed = [patterns._parse_normal(each.normal) for each in filters]
    monkeypatch.setattr(patterns, "_parse_normal", lambda _: pytest.fail("parsed again"))
    assert [expressions.compile_normal(each.normal) for each in filters] == parsed
