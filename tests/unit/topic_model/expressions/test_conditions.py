"""Conditions: their results, refused ones, and a bounded time for every accepted one."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Mapping

import pytest

from arborcast.core.errors import ConditionError, ContentExpressionError
from arborcast.topic_model.expressions.conditions import XPATH_1, EvaluationError, compile_condition, parse_document
from arborcast.topic_model.expressions.item_filter import to_xpath
from arborcast.topic_model.subscriptions import XPathFilter

NAMESPACES = {"o": "urn:o", "": "urn:default"}

ORDER = b"""<o:order xmlns:o="urn:o" id="7" state="open">
  <o:customer>Mills &amp; Sons</o:customer><plain>1</plain>
  <o:line price="5"><o:item>bolt</o:item></o:line>
  <o:line price="20"><o:item>nut</o:item><o:box><o:item/></o:box></o:line>
</o:order>"""


def holds(text: str, document: bytes = ORDER) -> bool:
    return compile_condition(XPathFilter(XPATH_1, text, NAMESPACES)).holds(parse_document(document))


HOLD = [
    # The context node is the payload element itself.
    *("o:line", "/o:order", "self::o:order", "/o:order/o:line/@price > 10", "//o:item = 'nut'", "/o:order//o:item"),
    *(".//o:box/o:item", "count(//o:line) = 2 and not(//o:missing)", "sum(o:line/@price) * 2 = 50"),
    *("o:customer/text() = 'Mills & Sons'", "contains(o:customer, 'Mills')", "starts-with(@state, 'op') or false()"),
    *("(//o:line)[2]/@price = 20", "o:line[o:item[. = 'bolt']]", "//*[.//o:box]"),
    "translate(@state, 'open', 'OPEN') = 'OPEN'",
    "plain",  # an unprefixed name has no namespace, even with a default one
    *("/", "/.", "/self::node()", "boolean(/)"),  # the document node
    *("'x'", "count(//o:line)", "true()"),  # converted as by boolean()
]
DO_NOT_HOLD = [
    *("o:order", "o:line[@price > 100]", "//o:item[. = 'screw']", "string(@id) = string(o:line/@price)", "customer"),
    *("not(/)", "/self::o:order", "/text()", "''", "0", "0 div 0"),
]


@pytest.mark.parametrize(
    ("text", "answer"), [*((each, True) for each in HOLD), *((each, False) for each in DO_NOT_HOLD)]
)
def test_results_of_conditions(text: str, answer: bool) -> None:
    assert holds(text) is answer


REFUSED = {
    "empty": [""],
    "no variables": ["$v"],
    "downward axes only": ["//a/..", "//a[preceding::b]", "descendant::a"],
    "use `or`": ["//a | //b"],
    "only begin a path": ["//a//b", "a//b", "(//a)//b", "/a/b//c", "/a[1]//c", ".//a//b"],
    "only once, and only with": ["//a[//b]", "//a[b//c]", "//a[.//b and .//c]"],
    "begin at the root": ["//a[b[/c]]"],
    "one side of =": ["//a = //b", "count(//a) + b = c", "a = text()"],
    "one side of <": ["//a[b < c]"],
    "literal": [
        *("contains(//a, //b)", "contains(., concat('a', .))"),
        *("translate(., 'a', string(.))", "translate(., 'a' = 'b', 'c')"),
    ],
    "256 characters": [f"contains(., '{'a' * 300}')"],
    "not available": ["document('file:///etc/passwd')", "id('x')", "o:f(.)"],
    "'q' is not declared": ["q:a"],
    "nested": ["a[b[c[d]]]", "(" * 20 + "1" + ")" * 20],
    "too early": ["a[1"],
    "no opening bracket": ["a]", "(a]"],
    "not a legal XPath": ["a b", "a =", "count(1)", "contains('x')"],
    "is not allowed": ["a \x00"],
    "4096": ["a" * 5_000],
    "256 names": ["1" + "+1" * 200],
}


@pytest.mark.parametrize(("text", "why"), [(text, why) for why, texts in REFUSED.items() for text in texts])
def test_refused_conditions(text: str, why: str) -> None:
    with pytest.raises(ConditionError, match=why):
        compile_condition(XPathFilter(XPATH_1, text, NAMESPACES))


def test_only_xpath_1_is_offered() -> None:
    with pytest.raises(ConditionError, match="not supported"):
        compile_condition(XPathFilter("http://www.onvif.org/ver10/tev/messageContentFilter/ItemFilter", "true()"))


def test_a_wrong_type_in_some_documents() -> None:
    assert not holds("o:line[count(@price + 1) > 1]", b"<a/>")
    with pytest.raises(EvaluationError, match="cannot be evaluated"):
        holds("o:line[count(@price + 1) > 1]")


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b"<!DOCTYPE a [<!ENTITY e SYSTEM 'file:///etc/hostname'>]><a>&e;</a>", "DOCTYPE"),
        (b"<!DOCTYPE a [<!ENTITY e 'boom'>]><a>&e;</a>", "DOCTYPE"),
        *((document, "not well-formed") for document in (b"", b"<a>", b"<a/><b/>", b"<a>" * 300 + b"</a>" * 300)),
    ],
)
def test_unreadable_documents_have_no_result(document: bytes, why: str) -> None:
    with pytest.raises(EvaluationError, match=why):
        holds("string(.)", document)


FLAT = b"<r>" + b"<a><b/>aaaa</a>" * 100_000 + b"</r>"
DEEP = b"<r>" + (b"<a>" * 250 + b"</a>" * 250) * 200 + b"</r>"
COSTLY = [
    "//*[.//*[.//b]]".replace(".//b", "b = 'q'"),
    "//*[.//*[contains(., 'aaaaaaaaaaaaaaaaab')]]",
    "//*[.//* = 'q']",
    "//a[b]/b[not(c)] = 'q'",
    f"contains(., '{'a' * 255}b')",
    f"//*[contains(., '{'a' * 100}b')]",
    " or ".join(f"//*[.//x{n} = 'q']" for n in range(20)),
    " or ".join(f"//x{n}/y" for n in range(50)),
]


_parsed = functools.cache(parse_document)


@pytest.mark.timeout(120)  # half a second if bounded, minutes otherwise
@pytest.mark.parametrize("text", COSTLY, ids=[text[:40] for text in COSTLY])
@pytest.mark.parametrize("document", [FLAT, DEEP], ids=["flat", "deep"])
def test_evaluation_ends_soon_or_is_refused(text: str, document: bytes) -> None:
    condition = compile_condition(XPathFilter(XPATH_1, text, NAMESPACES))
    parsed = _parsed(document)
    with contextlib.suppress(EvaluationError):
        assert not condition.holds(parsed)


def test_a_large_simple_document_is_evaluated() -> None:
    assert not holds("//a[b = 'x']", FLAT)
    assert holds("count(//a) = 100000", FLAT)


# ONVIF's ItemFilter, as a condition.
MOTION = b"""<tt:Message xmlns:tt="http://www.onvif.org/ver10/schema" UtcTime="2026-01-01T00:00:00Z">
<tt:Source><tt:SimpleItem Name="VideoSourceConfigurationToken" Value="1"/><tt:SimpleItem Name="Rule" Value="it's"/>
</tt:Source><tt:Data><tt:SimpleItem Name="IsMotion" Value="true"/><tt:ElementItem Name="Region"><x/></tt:ElementItem>
</tt:Data></tt:Message>"""
DECLARED = {"tt": "http://www.onvif.org/ver10/schema", "o": "urn:o"}


def selects(text: str, namespaces: Mapping[str, str] = DECLARED) -> bool:
    return compile_condition(to_xpath(text, namespaces)).holds(parse_document(MOTION))


@pytest.mark.parametrize("namespaces", [DECLARED, {}])
@pytest.mark.parametrize("prefix", ["tt:", ""])
def test_item_filters_with_and_without_prefix(prefix: str, namespaces: Mapping[str, str]) -> None:
    for value, answer in (("true", True), ("false", False)):
        assert selects(f'boolean(//{prefix}SimpleItem[@Name="IsMotion" and @Value="{value}"])', namespaces) is answer


RULE, X, Y = (f'boolean(//SimpleItem[@Name="{name}"])' for name in ("Rule", "x", "y"))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('boolean(//tt:ElementItem[@Name="Region"])', True),
        ('boolean(//tt:ElementItem[@Name="IsMotion"])', False),
        ('not(boolean(//tt:SimpleItem[@Name="VideoAnalyticsConfigurationToken"]))', True),
        ('boolean(//tt:SimpleItem[@Value="it\'s"])', True),
        ("boolean(//tt:SimpleItem[@Name='IsMotion'])", True),
        (
            'boolean( //tt:SimpleItem [ @Name = "VideoSourceConfigurationToken"\n and (@Value="1" or @Value="2") ] )\n'
            'and boolean(//tt:SimpleItem[@Name="IsMotion" and not(@Value="false")])',
            True,
        ),
        (f"{RULE} or {X} and {Y}", True),  # `and` binds more than `or`, as in XPath
        (f"({RULE} or {X}) and {Y}", False),
    ],
)
def test_item_filters(text: str, answer: bool) -> None:
    assert selects(text) is answer


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "boolean is expected, but the text ends"),
        ("true()", "position 0: boolean is expected, not 'true'"),
        ("boolean(//tt:Source)", "SimpleItem or ElementItem"),
        ("boolean(//tt:SimpleItem)", "[ is expected"),
        ('boolean(/tt:Message/tt:SimpleItem[@Name="a"])', "position 8"),
        ('boolean(//o:SimpleItem[@Name="a"])', "namespace http://www.onvif.org/ver10/schema"),
        ('boolean(//tt:SimpleItem[@Other="a"])', "@Name or @Value"),
        ("boolean(//tt:SimpleItem[@Name=7])", "position 30"),
        ("boolean(//tt:SimpleItem[@Name=a])", "a quoted string"),
        ('boolean(//tt:SimpleItem[@Name!="a"])', "position 29"),
        ('boolean(//tt:SimpleItem[@Name="a"]', ") is expected, but the text ends"),
        ('boolean(//tt:SimpleItem[@Name="a"]) boolean', "`and` or `or`"),
        ("(" * 20, "16 parentheses"),
        (" " * 5_000, "4096 characters"),
    ],
)
def test_refused_item_filters(text: str, why: str) -> None:
    with pytest.raises(ContentExpressionError, match=re.escape(why)):
        to_xpath(text, DECLARED)


def test_an_item_filter_has_the_limits_of_conditions() -> None:
    many = " or ".join(f'boolean(//tt:SimpleItem[@Name="{number}"])' for number in range(40))
    with pytest.raises(ConditionError, match="256 names"):
        compile_condition(to_xpath(many, DECLARED))
