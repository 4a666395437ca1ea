"""Costly bodies: none takes more steps than ordinary bodies of its size, and refused ones change nothing.

Steps are the calls of Python and C functions while the request is answered, which are equal on each machine. A loop
inside one call (a regular expression that backtracks) would show as a test that does not end; each regular expression
is tested in tests/unit/test_regular_expressions.py.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from xml.sax.saxutils import escape

import pytest
from lxml import etree

from arborcast.client.received import messages as read_answer
from arborcast.client.received import read_reply
from arborcast.wire import fragments, xml_reading
from arborcast.wire.envelope import parse
from arborcast.wire.errors import MalformedMessage
from arborcast.wire.limits import PAYLOAD_DECLARATIONS, PAYLOAD_LEVELS
from tests.support import legacy_messages
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer
from tests.support.pulling import create, get

pytestmark = pytest.mark.slow

SIZE = 350_000

TINY_MESSAGE = soap.message("t:a", "<a/>")


def fill(unit: Callable[[int], str], size: int = SIZE) -> str:
    """Units up to a size."""
    return "".join(unit(number) for number in range(size // len(unit(size))))


def declarations(count: int) -> str:
    return "".join(f' xmlns:p{number}="u"' for number in range(count))


def attributes(count: int) -> str:
    return "".join(f" a{number}=''" for number in range(count))


def an_attribute(number: int) -> str:
    return f" a{number}=''"


def a_declaration(number: int) -> str:
    return f" xmlns:p{number}='u'"


def payload(text: str, around: str = "") -> bytes:
    body = soap.envelope(soap.notify(soap.message("t:a", f"<a>{text}</a>")))
    return body.replace(b"<s:Body>", f"<s:Body{around}>".encode())


def messages(around: str, each: str = TINY_MESSAGE) -> bytes:
    body = soap.envelope(soap.notify(*[each] * (SIZE // len(each))))
    return body.replace(b"<s:Body>", f"<s:Body{around}>".encode())


def legacy(text: str) -> bytes:
    return soap.envelope(f'<o:WsnProcess xmlns:o="{legacy_messages.SERVICE}">{escape(text)}</o:WsnProcess>')


OLD_NOTIFY = f'<wsnt:Notify xmlns:wsnt="{soap.WSNT}"'
OLD_MESSAGE = (
    "<wsnt:NotificationMessage><wsnt:Topic>a:b</wsnt:Topic><wsnt:Message>{}</wsnt:Message></wsnt:NotificationMessage>"
)

# Functions: all bodies together are 20 MB, in each process of the tests.
TAKEN: dict[str, Callable[[], bytes]] = {
    "one long text": lambda: payload("x" * SIZE),
    "many messages": lambda: messages(""),
    "empty elements": lambda: payload(fill(lambda n: "<b/>")),
    "elements of many names": lambda: payload(fill(lambda n: f"<b{n}/>")),
    "comments": lambda: payload(fill(lambda n: "<!---->")),
    "processing instructions": lambda: payload(fill(lambda n: "<?a?>")),
    "CDATA": lambda: payload(fill(lambda n: "<![CDATA[]]>")),
    "character references": lambda: payload(fill(lambda n: "&#65;")),
    "texts that look like a prefix": lambda: payload("xa:" * (SIZE // 3), ' xmlns:a="u"'),
    "prefixes that end in each other": lambda: payload(
        ("a" * 100 + ":") * (SIZE // 101), "".join(f' xmlns:{"a" * n}="u"' for n in range(1, 100))
    ),
    "many prefixes around one text": lambda: payload("x" * SIZE, declarations(200)),
    "prefixes in a list without end": lambda: payload("refix " + "x " * (SIZE // 2), declarations(200)),
    "prefixes around many messages": lambda: messages(declarations(50)),
    "an element of its own name inside": lambda: payload(fill(lambda n: "<a>x</a>")),
    "blanks in a tag with a declaration": lambda: payload(f"<b xmlns:q='u'{' ' * SIZE}/>"),
    "blanks in the tag around the payload": lambda: payload("", f" xmlns:q='u'{' ' * SIZE}"),
    "blanks before an attribute's value": lambda: payload(f"<b xmlns:q{' ' * (SIZE // 2)}={' ' * (SIZE // 2)}'u'/>"),
    "blanks in an end tag": lambda: payload(f"<b></b{' ' * SIZE}>"),
    "long names with attributes": lambda: payload(fill(lambda n: f"<{'b' * 49_000}{attributes(30)}/>")),
    "long names of attributes": lambda: payload(
        "<b xmlns:q='u'" + "".join(f" {letter * 49_000}=''" for letter in "acdefgh") + "/>"
    ),
    "beginnings of tags in a comment": lambda: payload(f"<!--{('<a ' + 'x' * 9) * (SIZE // 12)}-->"),
    "beginnings of tags in CDATA": lambda: payload(f"<![CDATA[{('<a ' + 'x' * 9) * (SIZE // 12)}]]>"),
    "beginnings of comments in CDATA": lambda: payload(f"<![CDATA[{'<!--' * (SIZE // 4)}]]>"),
    "quotes in a text": lambda: payload("\"'" * (SIZE // 2)),
    "attributes, as many as may be": lambda: payload(f"<b{attributes(1_000)}/>"),
    "256 declarations": lambda: payload(f"<b{declarations(256)}/>"),
    "loose content in the older envelope": lambda: legacy(
        f"{OLD_NOTIFY}>{fill(lambda n: OLD_MESSAGE.format('x'))}</wsnt:Notify>"
    ),
}

REFUSED: dict[str, Callable[[], bytes]] = {
    "attributes without end": lambda: payload(f"<b{fill(an_attribute)}/>"),
    "one attribute too many": lambda: payload(f"<b{attributes(1_001)}/>"),
    "attributes of the envelope": lambda: payload("", fill(an_attribute)),
    "declarations without end": lambda: payload(f"<b{fill(a_declaration)}/>"),
    "one declaration too many": lambda: payload(f"<b{declarations(257)}/>"),
    "declarations around a payload": lambda: payload("", fill(a_declaration)),
    "declarations on many levels": lambda: payload(f"<b{declarations(1_000)}>" * 40 + "</b>" * 40),
    "declarations without end, in UTF-16": lambda: payload(f"<b{declarations(5_000)}/>").decode().encode("utf-16"),
    "blanks in the XML declaration": lambda: (
        f"<?xml version='1.0'{' ' * SIZE}?>".encode() + payload("").replace(b"Notify", b"X")
    ),
    "blanks instead of the XML declaration's end": lambda: f"<?xml version='1.0'{' ' * SIZE}".encode(),
    "a long name": lambda: payload(f"<{'a' * SIZE}/>"),
    "endless levels": lambda: payload("<a>" * (SIZE // 7) + "</a>" * (SIZE // 7)),
    "empty messages": lambda: soap.envelope(
        f"<wsnt:Notify>{fill(lambda n: '<wsnt:NotificationMessage/>')}</wsnt:Notify>"
    ),
    "empty elements beside messages": lambda: soap.envelope(f"<wsnt:Notify>{fill(lambda n: '<b/>')}</wsnt:Notify>"),
    "many operations": lambda: soap.envelope(fill(lambda n: "<b/>")),
    "many headers": lambda: soap.envelope(soap.notify(), header=fill(lambda n: "<b/>")),
    "a namespace that every topic is remembered by": lambda: messages(f' xmlns:h="{"h" * (SIZE // 2)}"'),
    "many prefixes around messages with their own": lambda: messages(
        declarations(240), TINY_MESSAGE.replace("<wsnt:NotificationMessage>", '<wsnt:NotificationMessage xmlns:q="u">')
    ),
    "a policy without end": lambda: soap.envelope(
        soap.subscribe(more=f"<wsnt:SubscriptionPolicy>{fill(lambda n: '<b/>')}</wsnt:SubscriptionPolicy>")
    ),
    "filters without end": lambda: soap.envelope(soap.subscribe(filters=fill(lambda n: "<b/>"))),
    "a Renew without end": lambda: soap.envelope(f"<wsnt:Renew>{fill(lambda n: '<b/>')}</wsnt:Renew>"),
    "blanks in the older envelope": lambda: legacy(f"{OLD_NOTIFY}>{' ' * SIZE}"),
    "CDATA that never ends": lambda: legacy("&" + fill(lambda n: "<![CDATA[", SIZE // 2)),
    "comments that never end": lambda: legacy("&" + fill(lambda n: "<!--", SIZE // 2)),
    "instructions that never end": lambda: legacy("&" + fill(lambda n: "<?", SIZE // 2)),
    "declarations in the older envelope": lambda: legacy(
        f"{OLD_NOTIFY}{declarations(257)}>{OLD_MESSAGE.format('x')}</wsnt:Notify>"
    ),
    "a namespace that every loose content repeats": lambda: legacy(
        f'{OLD_NOTIFY} xmlns:p="{"p" * (SIZE // 2)}">{OLD_MESSAGE.format("p:") * 500}</wsnt:Notify>'
    ),
    "declarations around loose content": lambda: legacy(
        f"{OLD_NOTIFY}{declarations(65)}>{OLD_MESSAGE.format('x')}</wsnt:Notify>"
    ),
}


def answered(body: bytes) -> tuple[GatewayParts, HttpAnswer, int]:
    """The gateway, its answer, and the steps."""
    parts = GatewayParts()
    steps = 0

    def count(frame: object, event: str, argument: Any) -> None:
        nonlocal steps
        steps += event in ("call", "c_call")

    before, before_in_threads = sys.getprofile(), threading.getprofile()
    sys.setprofile(count)
    threading.setprofile(count)  # large bodies are parsed in a thread
    try:
        answer = parts.post(body)
    finally:
        sys.setprofile(before)
        threading.setprofile(before_in_threads)
    return parts, answer, steps


@pytest.fixture(scope="module")
def ordinary() -> int:
    """The steps for a body of this size that consists of messages, the most expensive ordinary body."""
    return answered(TAKEN["many messages"]())[2]


@pytest.mark.parametrize("name", TAKEN)
def test_the_cost_of_accepted_bodies(name: str, ordinary: int) -> None:
    parts, answer, steps = answered(TAKEN[name]())
    assert answer.status in (200, 202), answer.body
    assert parts.notifications.accepted
    assert steps <= 3 * ordinary


@pytest.mark.parametrize("name", REFUSED)
def test_the_cost_of_refused_bodies(name: str, ordinary: int) -> None:
    parts, answer, steps = answered(REFUSED[name]())
    assert answer.status in (400, 413, 500)
    assert answer.fault
    assert len(answer.body) < 2_000
    assert (parts.notifications.accepted, parts.control.records) == ([], [])
    assert steps <= 3 * ordinary


def test_text_like_tags_is_not_counted() -> None:
    xml_reading.check_tags(b"<a b='1'>" + b" c='2'" * 5_000 + b"</a>")
    xml_reading.check_tags(b"<a b='>'" + b" c='2'" * 900 + b">" + b" c='2'" * 900 + b"</a>")
    with pytest.raises(MalformedMessage, match="more than 1000 attributes"):
        xml_reading.check_tags(b"<a b='>'" + b" c='2'" * 1_000 + b"/>")


def test_text_like_declarations_is_not_counted() -> None:
    words = b"<a>" + b"xmlns " * (PAYLOAD_DECLARATIONS + 1) + b"</a>"
    xml_reading.check_payload(words, etree.fromstring(words))


def test_an_empty_element_is_a_level() -> None:
    for around, refused in ((PAYLOAD_LEVELS - 1, False), (PAYLOAD_LEVELS, True)):
        nested = b"<a>" * around + b"<a/>" + b"</a>" * around
        with pytest.raises(MalformedMessage, match="levels") if refused else nullcontext():
            xml_reading.check_payload(nested, etree.fromstring(nested))


def test_the_total_of_declarations_is_bounded() -> None:
    with pytest.raises(MalformedMessage, match="100001 namespaces"):
        xml_reading.check_tags(b"<a>" + b"<b xmlns='u'/>" * 100_001 + b"</a>")


def test_an_expensive_payload_keeps_all_prefixes() -> None:
    # A superset is valid, and needs no search.
    text = "x " * fragments._LISTS
    request = parse(payload(f"refix {text}", ' xmlns:unused="u"'))
    source = request.source(6)
    assert b'xmlns:unused="u"' in source.fragment(source.node(request.operation[0][1][0]))


def deep(levels: int) -> str:
    return "<a>" * levels + "</a>" * levels


def wide(number: int) -> str:
    return "<a>" + "<b xmlns='u'>some text</b>" * number + "</a>"


def by_notify(parts: GatewayParts, text: str) -> int:
    return parts.post(soap.envelope(soap.notify(soap.message(payload=text)))).status


def by_notify_with_a_known_shape(parts: GatewayParts, text: str) -> int:
    assert by_notify(parts, "<first/>") == 202
    parts.notifications.accepted.clear()
    return by_notify(parts, text)


def by_the_older_envelope_loose(parts: GatewayParts, text: str) -> int:
    """The element around other content is a level of the payload."""
    message = legacy_messages.notify("a", f"text and {text.removeprefix('<a>').removesuffix('</a>')}")
    return parts.post(legacy_messages.wsn_process(message), "/WSN/Broker").status


def by_a_pull_point(parts: GatewayParts, text: str) -> int:
    return parts.post(soap.envelope(soap.notify(soap.message(payload=text))), create(parts)).status


@pytest.mark.parametrize("reader", [by_notify_with_a_known_shape, by_the_older_envelope_loose, by_a_pull_point])
def test_limits_of_a_payload_for_other_readers(reader: Callable[[GatewayParts, str], int]) -> None:
    """As with each protocol (test_protocols.py): accepted messages are readable with libxml2's default limits."""
    for taken, refused in (
        (deep(PAYLOAD_LEVELS), deep(PAYLOAD_LEVELS + 1)),
        (wide(PAYLOAD_DECLARATIONS - 10), wide(PAYLOAD_DECLARATIONS + 1)),
    ):
        assert reader(GatewayParts(), taken) < 300, reader
        parts = GatewayParts()
        assert reader(parts, refused) >= 400, reader
        assert parts.notifications.accepted == []
        assert not [each for each in parts.pull_log.store.ids() if parts.pull_log.store.waiting(each)]


def test_declarations_around_a_payload_count_in_its_start_tag() -> None:
    """The fragment declares them in its start tag, together with its own."""
    parts = GatewayParts()
    own = declarations(200)
    used = "".join(f"<q{number}:x/>" for number in range(100))
    around = "".join(f" xmlns:q{number}='u'" for number in range(100))
    body = soap.envelope(soap.notify(soap.message("t:a", f"<a{own}>{used}</a>")))
    assert parts.post(body.replace(b"<s:Body>", f"<s:Body{around}>".encode())).status == 400
    assert parts.notifications.accepted == []


def test_answers_are_not_limited_like_requests() -> None:
    """Each message was within the limits of a request, their sum is not."""
    parts = GatewayParts()
    path = create(parts)
    message = soap.message("t:a", f"<a>{'xmlns ' * 40_000}</a>")
    for _ in range(3):
        assert parts.post(soap.envelope(soap.notify(message)), path).status == 202
    answers = [parts.post(get(), path) for _ in range(3)]
    found = (each for answer in answers for each in answer.root.iterfind(f".//{{{soap.WSNT}}}NotificationMessage"))
    elements = b"".join(map(etree.tostring, found))
    opened = f'<wsnt:GetMessagesResponse xmlns:wsnt="{soap.WSNT}">'
    together = soap.envelope(f"{opened}{elements.decode()}</wsnt:GetMessagesResponse>")
    assert len(read_answer(read_reply("http://x", 200, "", "text/xml", together))) == 3
