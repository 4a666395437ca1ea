"""The XPath dialect over a small topic set, and refusal of expressions of unbounded cost."""

from __future__ import annotations

import pytest

from arborcast.core.errors import ExpressionError
from arborcast.topic_model import expressions
from arborcast.topic_model.expressions import XPATH, XPathPattern, xpath
from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.tree import TopicTree
from tests.support.routing import tree_of

NAMESPACES = {"tns": "urn:t", "x": "urn:x", "w": "http://docs.oasis-open.org/wsn/t-1"}

# `{urn:t}plain` is only a node: there is a topic below it.
TOPICS = ["{urn:t}a", "{urn:t}a/b", "{urn:t}a/b/c", "{urn:t}a/{urn:x}b", "{urn:t}plain/b", "n", "n/b"]


@pytest.fixture
def tree() -> TopicTree:
    return tree_of(*TOPICS)


def _compile(text: str) -> XPathPattern:
    pattern = expressions.compile_normal(expressions.parse(text, XPATH, NAMESPACES).normal)
    assert isinstance(pattern, XPathPattern)
    return pattern


SELECTIONS = [
    ("tns:a", {"{urn:t}a"}),
    ("tns:a/b", {"{urn:t}a/b"}),
    ("tns:a/x:b", {"{urn:t}a/{urn:x}b"}),
    ("//b", {"{urn:t}a/b", "{urn:t}plain/b", "n/b"}),
    ("//tns:a/b", {"{urn:t}a/b"}),
    ("tns:plain", set()),
    ("tns:*/b", {"{urn:t}a/b", "{urn:t}plain/b"}),
    ("*", {"{urn:t}a", "n"}),
    ("//x:*", {"{urn:t}a/{urn:x}b"}),
    ("tns:a//.", {"{urn:t}a", "{urn:t}a/b", "{urn:t}a/b/c", "{urn:t}a/{urn:x}b"}),
    ("tns:a//*", {"{urn:t}a/b", "{urn:t}a/b/c", "{urn:t}a/{urn:x}b"}),
    ("//*//*", set(TOPICS)),  # the first * is also the TopicSet element itself
    ("//*", set(TOPICS)),
    ("/w:TopicSet/tns:a/b/c", {"{urn:t}a/b/c"}),
    ("/tns:a", set()),
    (".", set()),
    ("tns:a | n", {"{urn:t}a", "n"}),
    ('//b[@w:topic="true"]', {"{urn:t}a/b", "{urn:t}plain/b", "n/b"}),
    ("*[@w:topic='true']/b", {"{urn:t}a/b", "n/b"}),
    ("*[not(@w:topic)]/b", {"{urn:t}plain/b"}),
    ("//b[c]", {"{urn:t}a/b"}),
    ("//*[.//c]", {"{urn:t}a", "{urn:t}a/b"}),
    ("//*[local-name()='b'][not(c)]", {"{urn:t}a/{urn:x}b", "{urn:t}plain/b", "n/b"}),
    ("*[count(*) = 2]", {"{urn:t}a"}),
    ("tns:a/*[last()]", {"{urn:t}a/{urn:x}b"}),
    ("//*[2 * 3 = 6 and * and b/c]", {"{urn:t}a"}),
    ("//*[starts-with(local-name(), 'b') and position() = 1]/c", {"{urn:t}a/b/c"}),
]


@pytest.mark.parametrize(("text", "selected"), SELECTIONS, ids=[text for text, _ in SELECTIONS])
def test_selection(text: str, selected: set[str], tree: TopicTree) -> None:
    pattern = _compile(text)
    assert pattern.select(tree) == selected
    if pattern.path_only:
        assert {path for path in tree.paths() if pattern.matches(path)} == selected


@pytest.mark.parametrize("text", ["//tns:a/b", "a//. | b/*", '//c[@w:topic="true"]'])
def test_expressions_that_a_path_alone_decides(text: str) -> None:
    assert _compile(text).path_only


@pytest.mark.parametrize(
    "text",
    [
        *('//b[@w:topic="true"]/c', '//c[@x:topic="true"]', "//c[@w:topic='true'][1]", "//b[c]"),
        *("//*[local-name()='b']", "a | b[c]"),
    ],
)
def test_expressions_that_need_the_topic_set(text: str) -> None:
    pattern = _compile(text)
    assert not pattern.path_only
    with pytest.raises(ValueError, match="use select"):
        pattern.matches(TopicPath("a"))


def test_few_and_many_selected_topics() -> None:
    names = {f"a/n{number}" for number in range(40)}
    for text, selected in (("a/n7", {"a/n7"}), ("a/*|//n7", names)):
        assert _compile(text).select(tree_of(*names)) == selected


def test_a_topic_is_selected_if_it_exists(tree: TopicTree) -> None:
    pattern = _compile("tns:plain[@w:topic='true']")
    assert pattern.select(tree) == set()
    tree.put(TopicRecord(TopicPath("{urn:t}plain")))
    assert pattern.select(tree) == {"{urn:t}plain"}


ILLEGAL = {
    "ends too early": {"": 0, "/": 1, "//a[": 4, "//a[1": 5},
    "is not allowed here": {"//a]": 3, "a b": 2},
    "is not allowed in an XPath": {"a[. = 'x]": 6, "//\x00": 2},
    "'q' is not declared": {"//q:a": 2, "a[@q:topic]": 3},
    r"not \$": {"$v": 0},
    "no variables": {"//a[$v]": 4},
    "location path": {"count(//a)": 0, "a/text()": 2},
    r"not \(": {"(//a)[1]": 0},
    "not @": {"//@id": 2},
    r"not \.\.": {"//a/..": 4},
    "not ancestor": {"ancestor::a": 0},
    "downward": dict.fromkeys(("//a[../b]", "//a[ancestor::b]", "//a[following-sibling::b]", "//a[descendant::b]"), 4),
    "begin at the root": {"//a[//b]": 4, "//a[b and /c]": 10},
    "only with .//": {"//a[b//c]": 5, "//a[b/.//c]": 7},
    "only once": {"//a[.//b][.//c and .//d]": 20},
    "union": {"//a[b | c]": 6},
    "literal": {"//a[* != *]": 6, "//a[(b) = (c)]": 8},
    "not available": {
        **dict.fromkeys(("a[document('file:///etc/hostname')]", "a[w:test('x', '(x+)+y')]", "a[id('x')]"), 2),
        "a[child::text()]": 9,
    },
    "number of arguments": {"//a[contains('x')]": 4},
    "type": {"//a[count(1) = 2]": 4},
    "not a legal XPath": {"//a[1 +]": 0},
    "nested": {"a[b[c[d]]]": 5, "a[" + "(" * 20: 17},
    "has no opening bracket": {"a[b and (c]": 10},
    "16 alternatives": {"|".join("a" * 17): 31},
    "256 names": {"a" + "[1]" * 100: 256},
    "4096 characters": {"a" * 4097: 4096},
}


@pytest.mark.parametrize(
    ("text", "position", "why"), [(text, at, why) for why, texts in ILLEGAL.items() for text, at in texts.items()]
)
def test_illegal(text: str, position: int, why: str) -> None:
    with pytest.raises(ExpressionError, match=why) as caught:
        expressions.parse(text, XPATH, NAMESPACES)
    assert caught.value.position == position
    assert caught.value.fault == "InvalidTopicExpressionFault"


def test_the_normal_form_has_all_declarations_of_the_expression() -> None:
    parsed = expressions.parse(" //tns:a/b ", XPATH, NAMESPACES)
    assert parsed.normal == 'xpath:{"namespaces":{"tns":"urn:t"},"text":"//tns:a/b"}'
    assert parsed.namespaces == {"tns": "urn:t"}
    assert expressions.compile_normal(parsed.normal) == _compile("//tns:a/b")
    assert _compile("//tns:a/b") != _compile("//x:a/b")


def test_an_expression_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    filters = [expressions.parse(f" //tns:once{n}[b] ", XPATH, NAMESPACES) for n in range(3)]
    monkeypatch.setattr(xpath, "parse_xpath", lambda *_: pytest.fail("compiled again"))
    for each in filters:
        assert expressions.compile_normal(each.normal).normal == each.normal
