"""What must hold for any text: expressions, conditions, LDIF, and what is shown as a secret."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from arborcast.core.errors import ArborcastError, ConditionError, ExpressionError, SecretError, SignatureError
from arborcast.core.security.keyring import KeyRing, parse_keys
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
from arborcast.topic_model.expressions.conditions import Unanswerable, compile_condition, parse_document
from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.records import control
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.routing.rest import selects_any
from arborcast.topic_model.subscriptions import EndpointReference, Subscription, XPathFilter
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.tree import TopicTree

KEYS = KeyRing({"k1": b"k" * 32})


def _reasoned(error: ArborcastError, good: bool = True) -> None:
    """A refusal says why."""
    assert str(error)
    assert good


_NAMESPACES = {"t": "urn:t", "x": "http://x/y", "": "urn:default"}


@cache
def _tree() -> TopicTree:
    tree = TopicTree()
    for path in ("a", "a/b", "a/b/c", "{urn:t}a/b", "{http://x/y}b/{urn:t}c", "{urn:default}a"):
        tree.put(control.TopicRecord(TopicPath(path)))
    return tree


@cache
def _table() -> RoutingTable:
    """Topics that alternatives with many steps may meet: names that repeat, in two namespaces."""
    table = RoutingTable()
    for root in ("a", "{urn:t}a", "{http://x/y}b"):
        for below in ("/b/a/b", "/a/a/a/b/c", "/c/{urn:u}b/c"):
            table.apply(control.TopicRecord(TopicPath(root + below)))
    return table


def check_alternatives(data: bytes) -> None:
    """A subscription gets what its alternatives select, one by one; when it ends, nothing of it is left."""
    text = data.decode("utf-8", "replace")
    try:
        found = parse(text, FULL, _NAMESPACES)
    except ExpressionError as error:
        _reasoned(error)
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
    """Refused with a reason, or given a normal form that reads back to itself and can be asked about any topic."""
    text = data.decode("utf-8", "replace")
    for dialect in (*DIALECTS, None, "urn:x"):
        for namespaces in (_NAMESPACES, {}):
            try:
                found = parse(text, dialect, namespaces)
            except ExpressionError as error:
                _reasoned(error)
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
    """Refused, or compiled to something that has an answer for a document, or says that it has none."""
    text = data.decode("utf-8", "replace")
    try:
        condition = compile_condition(XPathFilter(_XPATH_1, text, {"o": "urn:o"}))
    except ConditionError as error:
        _reasoned(error)
        return
    for document in (_DOCUMENT, b"<x/>"):
        try:
            assert condition.holds(parse_document(document)) in (True, False)
        except Unanswerable:
            continue


def check_secrets(data: bytes) -> None:
    """Whatever is shown as a secret, a ciphertext, a key file or a signature: refused, and never quoted."""
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
            _reasoned(error, len(text) < 40 or text not in str(error))
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
    """LDIF is read or refused with the line; names in it are written back to what they were."""
    try:
        blocks = ldif.parse(data)
    except LdifError as error:
        _reasoned(error, error.line >= 1)
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
