"""Conditions: what they answer, what is refused, and that nothing accepted can take long."""

from __future__ import annotations

import contextlib
import functools

import pytest

from arborcast.core.errors import ConditionError
from arborcast.topic_model.expressions.conditions import XPATH_1, Unanswerable, compile_condition, parse_document
from arborcast.topic_model.subscriptions import XPathFilter

NAMESPACES = {"o": "urn:o", "": "urn:default"}

ORDER = b"""<o:order xmlns:o="urn:o" id="7" state="open">
  <o:customer>Mills &amp; Sons</o:customer><plain>1</plain>
  <o:line price="5"><o:item>bolt</o:item></o:line>
  <o:line price="20"><o:item>nut</o:item><o:box><o:item/></o:box></o:line>
</o:order>"""


def holds(text: str, document: bytes = ORDER) -> bool:
    return compile_condition(XPathFilter(XPATH_1, text, NAMESPACES)).holds(parse_document(document))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        # The context node is the payload element itself.
        ("o:line", True),
        ("o:order", False),
        ("/o:order", True),
        ("self::o:order", True),
        ("/o:order/o:line/@price > 10", True),
        ("o:line[@price > 100]", False),
        ("//o:item = 'nut'", True),
        ("//o:item[. = 'screw']", False),
        ("/o:order//o:item", True),
        (".//o:box/o:item", True),
        ("count(//o:line) = 2 and not(//o:missing)", True),
        ("sum(o:line/@price) * 2 = 50", True),
        ("o:customer/text() = 'Mills & Sons'", True),
        ("contains(o:customer, 'Mills')", True),
        ("starts-with(@state, 'op') or false()", True),
        ("string(@id) = string(o:line/@price)", False),
        ("(//o:line)[2]/@price = 20", True),
        ("o:line[o:item[. = 'bolt']]", True),
        ("//*[.//o:box]", True),
        ("translate(@state, 'open', 'OPEN') = 'OPEN'", True),
        # No namespace is no namespace, whatever the default one is.
        ("plain", True),
        ("customer", False),
        # The document, which is no element.
        ("/", True),
        ("/.", True),
        ("/self::node()", True),
        ("boolean(/)", True),
        ("not(/)", False),
        ("/self::o:order", False),
        ("/text()", False),
        # Whatever it gives is taken as boolean() would.
        ("'x'", True),
        ("''", False),
        ("0", False),
        ("0 div 0", False),
        ("count(//o:line)", True),
        ("true()", True),
    ],
)
def test_answers(text: str, answer: bool) -> None:
    assert holds(text) is answer


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("$v", "no variables"),
        ("//a/..", "downward axes only"),
        ("//a[preceding::b]", "downward axes only"),
        ("descendant::a", "downward axes only"),
        ("//a | //b", "use `or`"),
        ("//a//b", "only begin a path"),
        ("a//b", "only begin a path"),
        ("(//a)//b", "only begin a path"),
        ("/a/b//c", "only begin a path"),
        ("/a[1]//c", "only begin a path"),
        (".//a//b", "only begin a path"),
        ("//a[//b]", "only once, and only with"),
        ("//a[b//c]", "only once, and only with"),
        ("//a[.//b and .//c]", "only once, and only with"),
        ("//a[b[/c]]", "begin at the root"),
        ("//a = //b", "one side of ="),
        ("//a[b < c]", "one side of <"),
        ("count(//a) + b = c", "one side of ="),
        ("a = text()", "one side of ="),
        ("contains(//a, //b)", "literal"),
        ("contains(., concat('a', .))", "literal"),
        ("translate(., 'a', string(.))", "literal"),
        ("translate(., 'a' = 'b', 'c')", "literal"),
        (f"contains(., '{'a' * 300}')", "256 characters"),
        ("document('file:///etc/passwd')", "not available"),
        ("id('x')", "not available"),
        ("o:f(.)", "not available"),
        ("q:a", "'q' is not declared"),
        ("a[b[c[d]]]", "nested"),
        ("(" * 20 + "1" + ")" * 20, "nested"),
        ("a[1", "too early"),
        ("a]", "no opening bracket"),
        ("(a]", "no opening bracket"),
        ("a b", "not a legal XPath"),
        ("a =", "not a legal XPath"),
        ("count(1)", "not a legal XPath"),
        ("contains('x')", "not a legal XPath"),
        ("a \x00", "is not allowed"),
        ("a" * 5_000, "4096"),
        ("1" + "+1" * 200, "256 names"),
    ],
)
def test_refusals_say_why(text: str, why: str) -> None:
    with pytest.raises(ConditionError, match=why):
        compile_condition(XPathFilter(XPATH_1, text, NAMESPACES))


def test_only_xpath_1_is_offered() -> None:
    with pytest.raises(ConditionError, match="not supported"):
        compile_condition(XPathFilter("http://www.onvif.org/ver10/tev/messageContentFilter/ItemFilter", "true()"))


def test_type_that_is_wrong_only_in_some_documents_has_no_answer_there() -> None:
    assert not holds("o:line[count(@price + 1) > 1]", b"<a/>")
    with pytest.raises(Unanswerable, match="cannot be evaluated"):
        holds("o:line[count(@price + 1) > 1]")


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b"<!DOCTYPE a [<!ENTITY e SYSTEM 'file:///etc/hostname'>]><a>&e;</a>", "DOCTYPE"),
        (b"<!DOCTYPE a [<!ENTITY e 'boom'>]><a>&e;</a>", "DOCTYPE"),
        *((document, "not well-formed") for document in (b"", b"<a>", b"<a/><b/>", b"<a>" * 300 + b"</a>" * 300)),
    ],
)
def test_unreadable_documents_have_no_answer(document: bytes, why: str) -> None:
    with pytest.raises(Unanswerable, match=why):
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


@pytest.mark.timeout(120)  # bounded they take half a second, unbounded minutes
@pytest.mark.parametrize("text", COSTLY, ids=[text[:40] for text in COSTLY])
@pytest.mark.parametrize("document", [FLAT, DEEP], ids=["flat", "deep"])
def test_evaluation_ends_soon_or_is_not_begun(text: str, document: bytes) -> None:
    condition = compile_condition(XPathFilter(XPATH_1, text, NAMESPACES))
    parsed = _parsed(document)
    with contextlib.suppress(Unanswerable):
        assert not condition.holds(parsed)


def test_large_but_simple_is_answered() -> None:
    assert not holds("//a[b = 'x']", FLAT)
    assert holds("count(//a) = 100000", FLAT)
