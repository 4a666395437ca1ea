"""Checks of any text: expressions, conditions, LDIF, and text in place of a secret."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from arborcast.core.errors import ConditionError, ExpressionError, SecretError, SignatureError
from arborcast.core.security.keyring import parse_keys
from arborcast.core.security.signatures import check, key_of
from arborcast.directory.entries import ldif
from arborcast.directory.entries.dn import format_dn, parse_dn
from arborcast.directory.errors import DnError, LdifError
from arborcast.topic_model.expressions import (
    DIALECTS,
    FULL,
    XPathPattern,
    compile_normal,
    concrete_topic,
    parse,
    parse_friendly,
)
from arborcast.topic_model.expressions.conditions import EvaluationError, compile_condition, parse_document
from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.records import control
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.routing.rest import selects_any
from arborcast.topic_model.subscriptions import EndpointReference, Subscription, XPathFilter
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.tree import TopicTree
from tests.fuzz._generate import KEYS, SECRET, TOPIC_TEXTS, Target, reasoned

_NAMESPACES = {"t": "urn:t", "x": "http://x/y", "": "urn:default"}


@cache
def _tree() -> TopicTree:
    tree = TopicTree()
    for path in ("a", "a/b", "a/b/c", "{urn:t}a/b", "{http://x/y}b/{urn:t}c", "{urn:default}a"):
        tree.put(control.TopicRecord(TopicPath(path)))
    return tree


@cache
def _table() -> RoutingTable:
    """Topics that alternatives with many steps may match: names that repeat, in two namespaces."""
    table = RoutingTable()
    for root in ("a", "{urn:t}a", "{http://x/y}b"):
        for below in ("/b/a/b", "/a/a/a/b/c", "/c/{urn:u}b/c"):
            table.apply(control.TopicRecord(TopicPath(root + below)))
    return table


def check_alternatives(data: bytes) -> None:
    """A subscription gets the topics of its alternatives; nothing of it is left after its end."""
    text = data.decode("utf-8", "replace")
    try:
        found = parse(text, FULL, _NAMESPACES)
    except ExpressionError as error:
        reasoned(error)
        return
    table, pattern = _table(), parse_normal(found.normal)
    table.apply(control.SubscriptionRecord(Subscription("s", EndpointReference("http://c/"), topics=(found,))))
    try:
        selected = {path for path in table.topics.paths() if pattern.matches(path)}
        assert {path for path in table.topics.paths() if table.match(path)} == selected
        assert selects_any(pattern, table.topics) == bool(selected)
        assert all(
            pattern.matches(TopicPath(f"{each}/b")) == bool(table.match(TopicPath(f"{each}/b"))) for each in _NEW
        )
    finally:
        table.apply(control.SubscriptionEnded("s", "unsubscribed", 0))
    sizes = table.statistics()
    assert (sizes.subscriptions, sizes.selectors, sizes.links, sizes.steps) == (0, 0, 0, 0)


_NEW = ("a/b", "{http://x/y}b/{urn:u}a")


def check_expression(data: bytes) -> None:
    """Refused with a reason, or given a normal form that reads back to itself and can be evaluated for any topic."""
    text = data.decode("utf-8", "replace")
    for dialect in (*DIALECTS, None, "urn:x"):
        for namespaces in (_NAMESPACES, {}):
            try:
                found = parse(text, dialect, namespaces)
            except ExpressionError as error:
                reasoned(error)
                continue
            compiled = compile_normal(found.normal)
            assert compile_normal(compiled.normal).normal == compiled.normal
            if isinstance(compiled, XPathPattern):
                list(compiled.select(_tree()))
                continue
            selected = set(_tree().select(compiled))
            assert selected == {path for path in _tree().paths() if compiled.matches(path)}
            again = parse(found.text, found.dialect, namespaces)
            assert again.normal == found.normal
    for dialect in (*DIALECTS, None):
        try:
            topic = concrete_topic(text, dialect, _NAMESPACES)
        except ExpressionError:
            continue
        assert parse_normal(topic).single_topic() == topic
    try:
        friendly = parse_friendly(text, {"t": "urn:t"})
    except ExpressionError:
        return
    assert compile_normal(friendly.normal).normal == friendly.normal


_DOCUMENT = b'<o:order xmlns:o="urn:o" a="7"><o:x>1</o:x><o:x b="">two</o:x><y><z/></y></o:order>'
_XPATH_1 = "http://www.w3.org/TR/1999/REC-xpath-19991116"


def check_condition(data: bytes) -> None:
    """Refused, or compiled; the result for a document is a truth value or an error."""
    text = data.decode("utf-8", "replace")
    try:
        condition = compile_condition(XPathFilter(_XPATH_1, text, {"o": "urn:o"}))
    except ConditionError as error:
        reasoned(error)
        return
    for document in (_DOCUMENT, b"<x/>"):
        try:
            assert condition.holds(parse_document(document)) in (True, False)
        except EvaluationError:
            continue


def check_secrets(data: bytes) -> None:
    """Any text in place of a secret, a ciphertext, a key file or a signature: refused, and never quoted."""
    text = data.decode("utf-8", "replace")
    steps: tuple[Callable[[], object], ...] = (
        lambda: key_of(text),
        lambda: KEYS.open(text, "context"),
        lambda: KEYS.open(f"k1:{text}", "context"),
        lambda: parse_keys(text),
    )
    for step in steps:
        try:
            step()
        except SecretError as error:
            reasoned(error, len(text) < 40 or text not in str(error))
    for headers in _signature_headers(text):
        try:
            check([b"k" * 32], headers, data, 1_800_000_000.0)
        except SignatureError:
            continue
        raise AssertionError("a forged signature was accepted")


def _signature_headers(text: str) -> tuple[Mapping[str, str], ...]:
    good = {"webhook-id": "msg_1", "webhook-timestamp": "1800000000", "webhook-signature": "v1,AAAA"}
    return tuple({**good, name: text} for name in good)


def check_ldif(data: bytes) -> None:
    """LDIF is read, or refused with the line; names in it are written back unchanged."""
    try:
        blocks = ldif.parse(data)
    except LdifError as error:
        reasoned(error, error.line >= 1)
    else:
        for block in blocks:
            if block.entry is not None:
                (again,) = [each.entry for each in ldif.parse(ldif.render(block.entry).text) if each.entry is not None]
                assert again == block.entry
    text = data.decode("utf-8", "replace")
    try:
        dn = parse_dn(text)
    except DnError:
        return
    assert parse_dn(format_dn(dn)) == dn


_TOPIC_SNIPPETS = (
    *b"/ // //. * | : . .. { } {} t: x: q: a [ ] ( ) @ count( = 1 ' \" self::".split(),
    *(b" or ", b"/a" * 40, b"|a" * 40, b"//*" * 20),
)
_ALTERNATIVES = (
    b"t:a//b|t:a//c/b|t:a//a//a|t:a/*/b",
    b"a//b//c|a//b|a/b/c//.|//b|//b/*|*/b|x:b//t:c",
    b"t:a//b//c//b//c|t:a//*/c|t:a/*/*/b|t:a//b//*|//c//.|t:a//a/a//a",
    b"|".join(b"t:a//%c//%c/*" % (first, second) for first in b"abc" for second in b"abc"),
    b"//a|//b|//c|//t:a|//x:b//c|//*|t:a|a",
)
_ALTERNATIVE_SNIPPETS = (
    *b"| // / * . //. /* //* t: x: a b c |a//b |t:a//b //b/*//c |* //t:b /x:c".split(),
    *(b"//a" * 8, b"/*" * 8, b"|t:a//b//c" * 20, b"|//b" * 10),
)
_XPATH_SNIPPETS = (
    *b"/ // .. * | [ ] ( ) @ ' \" , $x ancestor:: id( document('file:///etc/passwd') count( not( string(".split(),
    *b"position() last() 1e400 preceding::* re:test( o:x < >".split(),
    *(b"//*" * 30, b"[*" * 30, b" and ", b" or ", b" div ", b" mod ", b"-" * 40),
)
_CONDITIONS = (
    *(b"//o:x[@b] = 1", b"count(/o:order/*) > 2 and not(//y/z)", b"o:x|y/z"),
    b"string-length(normalize-space(o:x)) + 1",
)
_SECRETS = (
    *(SECRET.encode(), KEYS.seal(b"x" * 32, "context").encode(), b"k1 " + b"QUFB" * 10 + b"QUE=\n"),
    *(b"1800000000", b"v1,AAAA v1,BBBB"),
)
_LDIF = (
    b"version: 1\n\ndn: ou=topics,dc=x\nobjectClass: organizationalUnit\nou: topics\n\n# c\n"
    b"dn:: b3U9YSxkYz14\ncn: a\n b\n",
    b"dn: cn=a\\,b+ou=\\C3\\A4,dc=x\ncn;lang-de: a,b\ndescription:: AAAA\n",
    b"cn=a\\20,ou=#0401,dc=x",
)

TARGETS = {
    "expression": Target(check_expression, TOPIC_TEXTS, _TOPIC_SNIPPETS),
    "alternatives": Target(check_alternatives, _ALTERNATIVES, _ALTERNATIVE_SNIPPETS),
    "condition": Target(check_condition, _CONDITIONS, _XPATH_SNIPPETS),
    "ldif": Target(
        check_ldif, _LDIF, (b"\n\n", b"\n ", b":: ", b":< ", b"changetype: add\n", *b'dn: \\ \\2 + , = " # ;'.split())
    ),
    "secrets": Target(check_secrets, _SECRETS, (b"\n", b" ", *b"whsec_ k1: v1, v1a, = + / #".split())),
}
