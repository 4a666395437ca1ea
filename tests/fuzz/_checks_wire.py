"""Checks of requests over HTTP.

A check returns for a request that was executed or correctly refused, and raises for everything else.
"""

from __future__ import annotations

import codecs
import random
from xml.sax.saxutils import quoteattr

from lxml import etree

from arborcast.client.received import read_push
from arborcast.core.errors import PeerError
from arborcast.core.settings import SecretSettings
from arborcast.ingest.elements.protection import Protector
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.control import PullPointRecord, SubscriptionRecord
from arborcast.topic_model.records.packages import read_package_header, unwrap_part
from arborcast.topic_model.subscriptions import EndpointReference, Subscription
from tests.fuzz._generate import KEYS, SECRET, XML_SNIPPETS, Target, loop
from tests.support import legacy_messages as legacy
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts
from tests.support.one_reading import hidden, is_taken

_POLICY = 'xmlns:p="urn:arborcast:policy"'
_ADDRESS = (
    "<wsnt:SubscriptionReference><wsa:Address>http://127.0.0.1:8080/wsn/subscriptions/x</wsa:Address>"
    "</wsnt:SubscriptionReference>"
)
_PROTECTION = (
    f"<wsnt:SubscriptionPolicy {_POLICY}><p:Signing><p:Secret>{SECRET}</p:Secret></p:Signing><p:Credentials><p:Basic>"
    "<p:User>u</p:User><p:Password>w</p:Password></p:Basic></p:Credentials></wsnt:SubscriptionPolicy>"
)
_GATEWAY_SEEDS = (
    soap.envelope(soap.notify(soap.message(), soap.message("t:a", "<n><![CDATA[<]]>&#65;<!-- c --></n>"))),
    soap.envelope(soap.subscribe("http://h/c", soap.topic_expression("t:a//.|t:b/*"), "PT10M"), "1.2"),
    soap.envelope(soap.subscribe("http://h/c", soap.content_filter("//o:x[@a > 3]"), "2030-01-01T00:00:00Z")),
    soap.envelope(soap.subscribe("https://h/c", more=_PROTECTION)),
    soap.envelope(
        soap.renew("2030-01-01T00:00:00Z"), "1.2", soap.addressing("urn:a", to="http://h/wsn/subscriptions/x")
    ),
    soap.envelope(f"<wsnt:Unsubscribe>{_ADDRESS}</wsnt:Unsubscribe>"),
    soap.envelope(f'<p:RotateSecret {_POLICY} Overlap="PT1H">{_ADDRESS}</p:RotateSecret>'),
    soap.envelope(f"<wsnt:GetCurrentMessage>{soap.topic('t:a')}</wsnt:GetCurrentMessage>"),
    soap.envelope('<wsnt:CreatePullPoint pullPointQueueName="q"/>'),
    soap.envelope("<wsnt:GetMessages><wsnt:MaximumNumber>3</wsnt:MaximumNumber></wsnt:GetMessages>"),
    soap.envelope(soap.register("t:a", publisher="http://p/", demand="true", dialect="Concrete")),
    soap.envelope(
        '<r:GetResourceProperty xmlns:r="http://docs.oasis-open.org/wsrf/rp-2">wsnt:TopicExpression</r:GetResourceProperty>'
    ),
)
_PATHS = ("/wsn/NotificationBroker", "/wsn/subscriptions/x", "/onvif/event_service", "/wsn/pullpoints/x")


_THERE = Subscription("x", EndpointReference("https://there/"), "http://127.0.0.1:8080/wsn/subscriptions/x")


def _posted(body: bytes, path: str) -> tuple[GatewayParts, int, str]:
    parts = GatewayParts()
    parts.gateway.protector = Protector(SecretSettings(), KEYS)
    # So that requests for a subscription or a pull point find one.
    parts.table.apply(SubscriptionRecord(_THERE))
    parts.pull_points.apply(PullPointRecord("x", "http://127.0.0.1:8080/wsn/pullpoints/x"))
    answer = loop().run_until_complete(parts.request("POST", path, body))
    if answer.body:
        etree.fromstring(answer.body)
    return parts, answer.status, answer.reason if answer.status != 200 and answer.body else ""


def check_gateway(data: bytes) -> None:
    """Executed, or refused as the client's fault; then nothing is stored."""
    for path in dict.fromkeys((_PATHS[0], _PATHS[len(data) % len(_PATHS)])):
        parts, status, reason = _posted(data, path)
        assert status in (200, 202, 400, 413, 500), status
        if status not in (200, 202):
            assert reason != "internal error"
            assert parts.control.records == []
            assert parts.notifications.accepted == []


_HEADER_SEEDS = (
    b"urn:uuid:1\nhttp://h/answers\nPT10S\n2030-01-01T00:00:00Z\n5\ntrue\n{urn:t}x\nmerge",
    b"k1\nurn:arborcast:none\nP1D\n\n-100\n1\n\n",
    b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n\n\n\n\n\n\n",
)

_VALUES = 8


def check_headers(data: bytes) -> None:
    """Values in the headers of a publication, over HTTP and in an envelope: it is stored, or refused and not stored.
    Stored values are no longer than sent ones."""
    values = [*data.decode("utf-8", "replace").split("\n")[:_VALUES], *[""] * _VALUES][:_VALUES]
    names = ("Idempotency-Key", "traceparent", "Arborcast-Lifespan", "Arborcast-Valid-Until", "Arborcast-Priority")
    headers = dict(zip((*names, "Arborcast-Reliable", "Arborcast-Type", "Arborcast-Merge"), values, strict=True))
    name, reply_to, lifespan, until, priority, reliable, kind, merge = map(_as_attribute, values)
    block = (
        f"<wsa:MessageID>{name}</wsa:MessageID><wsa:ReplyTo><wsa:Address>{reply_to}</wsa:Address><wsa:"
        f"ReferenceParameters><x>{merge}</x></wsa:ReferenceParameters></wsa:ReplyTo><p:Publication {_POLICY} "
        f'Lifespan="{lifespan}" ValidUntil="{until}" Priority="{priority}" Reliable="{reliable}" Type="{kind}" '
        f'Merge="{merge}"/>'
    )
    producer = f"<wsnt:ProducerReference><wsa:Address>{reply_to}</wsa:Address></wsnt:ProducerReference>"
    message = soap.message().replace("<wsnt:Message>", f"{producer}<wsnt:Message>")
    for path, body in (("/publish/a", b"<x/>"), (_PATHS[0], soap.envelope(soap.notify(message), "1.1", block))):
        sent = {} if path == _PATHS[0] else {"Content-Type": "application/xml", **headers}
        parts = GatewayParts()
        answer = loop().run_until_complete(parts.request("POST", path, body, sent))
        assert answer.status in (202, 400, 413, 500), answer.status
        if answer.status != 202:
            assert b"internal error" not in answer.body
            assert parts.notifications.accepted == []
        for each in parts.notifications.accepted:
            key, stored = notifications.encode(each)
            assert notifications.decode(stored) == each
            assert len(key or b"") + len(stored) <= 2 * len(body) + 4 * len(data) + 1_000


def _as_attribute(value: str) -> str:
    written = quoteattr("".join(character if character.isprintable() else "?" for character in value))
    return written[1:-1].replace('"', "&quot;")


def check_legacy(data: bytes) -> None:
    """The same for the older envelope."""
    text = data.decode("utf-8", "replace")
    parts, status, reason = _posted(legacy.wsn_process(text), "/wsnprocess")
    assert status in (200, 400, 413, 500), status
    if status != 200:
        assert reason
        assert reason != "internal error"
        assert parts.control.records == []
        assert parts.notifications.accepted == []


def check_fragments(data: bytes) -> None:
    """Content in parts, cut anywhere, shuffled and repeated, is stored as if sent whole, or not at
    all; and the numbers of a part are read from any text."""
    # The parser makes one line feed of two characters, and a cut may be between them.
    text = data.decode("utf-8", "replace").replace("\r", "")
    unwrap_part(text)
    read_package_header(text)
    if not text:
        return
    whole = GatewayParts()
    whole.post(legacy.wsn_process(legacy.notify("a", text)), "/wsnprocess")
    chance = random.Random(data)
    pieces = legacy.in_parts("a", text, max(1, chance.randrange(len(text)), len(text) // 20))
    chance.shuffle(pieces)
    parts = GatewayParts()
    for piece in [*pieces, *pieces[: len(pieces) // 2]]:
        answer = parts.post(legacy.wsn_process(piece), "/wsnprocess")
        assert answer.status in (200, 400, 413, 500), answer.status
        assert answer.status == 200 or answer.reason not in ("", "internal error")
    stored = [(each.payload, each.type) for each in parts.notifications.accepted]
    assert stored == [(each.payload, each.type) for each in whole.notifications.accepted]


_CHARSETS = (b"", b"utf-8", b"utf-16", b"utf-16be", b"iso-8859-1", b"gbk", b"us-ascii", b"Shift_JIS", b"windows-1252")
_CLAIMS = ("", "utf-8", "UTF-16", "UTF-16BE", "ISO-8859-1", "GB18030", "Shift_JIS", "UTF-32", "johab")


def _encoded_seeds() -> tuple[bytes, ...]:
    seeds = []
    for text in (f"<a>é€告~\\{hidden('t:b')}</a>", "<a><!-- é --><![CDATA[</a>é]]>&#60;<b c='é'/></a>"):
        document = soap.envelope(soap.notify(soap.message(payload=text))).decode()
        for number, claim in enumerate(_CLAIMS):
            declared = f"<?xml version='1.0' encoding='{claim}'?>{document}" if claim else document
            codec = claim or "utf-8"
            seeds.append(declared.encode(codec, "xmlcharrefreplace"))
            seeds.append((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF8)[number % 3] + seeds[-1])
            seeds.append(declared.encode(("utf-16", "utf-16-be", "utf-8-sig")[number % 3]))
    return tuple(seeds)


_ENCODED_SEEDS = _encoded_seeds()
_ENCODING_SNIPPETS = (
    *(codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    *(b"<\0", b"\0<", b"\0>", b">\0", b"Lo\xa7\x94", b"+ADw-", b"\x1b$B", b"~{", b"\x5c", b"\x7e", b"\xed\xa0\x80"),
    *(f" encoding='{claim}'".encode() for claim in _CLAIMS if claim),
    *(b"<?xml version='1.0'?>", b"<?xml ", b"version='1.1'", b" standalone='yes'", b"?>", b"\x85", "㰀⼀㸀".encode()),
    hidden("t:b").encode("utf-16-be"),
)


def check_encoding(data: bytes) -> None:
    """The messages are cut as they were parsed; ambiguous requests are refused."""
    charset = _CHARSETS[len(data) % len(_CHARSETS)]
    is_taken(data, b"text/xml; charset=" + charset if charset else b"text/xml")


def check_push(data: bytes) -> None:
    """A push to a listener is read, or refused as the sender's fault."""
    try:
        for message in read_push(data, b"text/xml", "n1,n2", 2):
            etree.fromstring(message.payload)
    except PeerError:
        return


_LEGACY_SEEDS = (
    legacy.subscribe("all:alarm:alarm1", "http://host:9002/wsn-subscribe"),
    legacy.unsubscribe("all:alarm:alarm1", "http://host:9002/wsn-subscribe"),
    legacy.notify("all:alarm:alarm1", "<level n='1'>3 &lt; 4</level>"),
    legacy.notify("all", "text & more", "1-0-1-2"),
    legacy.notify("all", "<half a tag", "1-1-0-0"),
    legacy.create_pull_point(),
)
_FRAGMENTED = (
    "<a b='1'>R&amp;D é告<c/><![CDATA[ & ]]></a>",
    "1 < 2 & more Ã© ",
    legacy.notify("a", "<x/>", "1-1-0-0"),
    "1-1-1-7;me%2C1",
)
_IN_LEGACY = (*XML_SNIPPETS, b"<wsnt:Message>", b"</wsnt:Message>")

TARGETS = {
    "headers": Target(
        check_headers,
        _HEADER_SEEDS,
        (*XML_SNIPPETS, b"\n", b"\t", *b"urn:x http:// [::1] 00- PT Z + true {urn:t}".split()),
    ),
    "gateway": Target(check_gateway, _GATEWAY_SEEDS, XML_SNIPPETS),
    "legacy": Target(check_legacy, tuple(map(str.encode, _LEGACY_SEEDS)), (*_IN_LEGACY, b"<Fragment>", b"0-", b"all:")),
    "fragments": Target(
        check_fragments,
        tuple(map(str.encode, _FRAGMENTED)),
        (*_IN_LEGACY, b"</Identification>", b"<Fragment>1-1-0-3</Fragment>"),
    ),
    "push": Target(
        check_push, (*_GATEWAY_SEEDS[:2], soap.envelope("<o:raw xmlns:o='urn:o'>1</o:raw>", "1.2")), XML_SNIPPETS
    ),
    "encoding": Target(check_encoding, _ENCODED_SEEDS, _ENCODING_SNIPPETS),
}
