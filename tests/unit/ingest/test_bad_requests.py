"""Bad requests and their answers. None changes the state.

Further cases: of one operation in its tests, of all faults of the standard in tests/conformance/cases.toml, of document
type declarations in test_hostile_encodings.py, of forbidden addresses in test_outbound.py.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from arborcast.ingest.settings import GatewaySettings
from tests.support import oasis
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts

BROKER = "/wsn/NotificationBroker"
LIMIT = 200_000
"""The body limit for the table (gateway.max_body_bytes)."""


@dataclass(frozen=True)
class BadRequest:
    """`fault` is the name of the detail element, or the fault code without a detail; empty without a SOAP answer."""

    name: str
    body: bytes
    status: int
    fault: str
    words: str
    path: str = BROKER
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)


_CREATION = "SubscribeCreationFailedFault"
_DIALECT, _SEVERAL = "TopicExpressionDialectUnknownFault", "MultipleTopicsSpecifiedFault"
_PRODUCER = "InvalidProducerPropertiesExpressionFault"
_CONTENT = "InvalidMessageContentExpressionFault"
_TERMINATION = "UnacceptableInitialTerminationTimeFault"
_TOPIC = "InvalidTopicExpressionFault"
_UNKNOWN = "ResourceUnknownFault"


def _malformed(name: str, body: bytes, words: str, status: int = 400, **headers: str) -> BadRequest:
    return BadRequest(name, body, status, "Client", words, headers=headers)


def _operation(name: str, fault: str, words: str, body: str, path: str = BROKER) -> BadRequest:
    return BadRequest(name, soap.envelope(body), 500, fault, words, path)


def _subscribe(name: str, fault: str, words: str, to: str = "http://127.0.0.1:9/c", **parts: str) -> BadRequest:
    return _operation(name, fault, words, soap.subscribe(to, **parts))


def _notify(name: str, fault: str, words: str, *messages: str) -> BadRequest:
    return _operation(name, fault, words, soap.notify(*messages))


_NOTIFY = soap.envelope(soap.notify())
_MIME = b"--b\r\nContent-Type: application/xop+xml\r\n\r\n" + _NOTIFY + b"\r\n--b--\r\n"
_XOP = 'Multipart/Related; boundary=b; type="application/xop+xml"'
_SOAP_2 = soap.envelope("").replace(soap.NAMESPACES["1.1"].encode(), b"urn:soap-2.0")

ENVELOPES = [
    _malformed("not XML", b"hello", "not well-formed"),
    _malformed("nothing", b"", "not well-formed"),
    _malformed("cut off", _NOTIFY[:-20], "not well-formed"),
    _malformed("two roots", _NOTIFY * 2, "not well-formed"),
    _malformed("a MIME package", _MIME, "without MTOM", 415, content_type=_XOP),
    _malformed("an undeclared prefix", soap.envelope("<x:Notify/>"), "prefix x"),
    _malformed("not SOAP", b"<html/>", "SOAP Envelope is expected"),
    BadRequest("another SOAP", _SOAP_2, 500, "VersionMismatch", "urn:soap-2.0"),
    _malformed("no body", soap.envelope("").replace(b"<s:Body></s:Body>", b""), "no Body"),
    _malformed("an empty body", soap.envelope(""), "it has none"),
    _malformed("two operations", soap.envelope(soap.notify() * 2), "it has 2 elements"),
    _malformed("two bodies", soap.envelope("<a/></s:Body><s:Body><b/>"), "there is another"),
    _malformed("20,000 levels", soap.envelope("<a>" * 20000 + "</a>" * 20000), "depth"),
    _malformed("too large", b" " * (LIMIT + 1), f"more than {LIMIT}", 413),
]


def _mandatory(version: str, true: str) -> BadRequest:
    body = soap.envelope(soap.notify(), version, f'<x:Pay xmlns:x="urn:x" s:mustUnderstand="{true}"/>')
    return BadRequest(f"a mandatory header of SOAP {version}", body, 500, "MustUnderstand", "{urn:x}Pay")


HEADERS = [_mandatory("1.1", "1"), _mandatory("1.2", "true")]

MANAGER = "/wsn/subscriptions/x"

OPERATIONS = [
    _operation("unknown operation", "ActionNotSupported", "{urn:x}Do", '<x:Do xmlns:x="urn:x"/>'),
    _operation("Subscribe to a subscription", "ActionNotSupported", "not offered at this", soap.subscribe(), MANAGER),
    _operation("Unsubscribe without a subscription", _UNKNOWN, "no subscription is named", "<wsnt:Unsubscribe/>"),
    _operation("GetMessages without a pull point", _UNKNOWN, "no pull point is named", "<wsnt:GetMessages/>"),
    *(
        _operation(name, fault, words, f"<wsnt:GetCurrentMessage>{topic}</wsnt:GetCurrentMessage>")
        for name, topic, fault, words in (
            ("GetCurrentMessage without a topic", "", "Client", "no wsnt:Topic"),
            ("GetCurrentMessage of several topics", soap.topic("t:a//.", "Full"), _SEVERAL, "one topic"),
            ("GetCurrentMessage of an invalid topic", soap.topic("t:a b"), _TOPIC, "t:a b"),
            ("GetCurrentMessage in an unknown dialect", soap.topic("t:a", "K"), _DIALECT, "K"),
        )
    ),
]

FETCHING = soap.content_filter("document('http://h/')", "ProducerProperties")
_ELEMENTS = "<wsnt:TopicExpression><a/></wsnt:TopicExpression>"
_LONG = soap.envelope(soap.subscribe(more=f"<x>{'x' * 70000}</x>"))

SUBSCRIBES = [
    _operation("no consumer", "Client", "no wsnt:ConsumerReference", "<wsnt:Subscribe/>"),
    _subscribe("no address", "Client", "no wsa:Address", to=" "),
    _subscribe("not http", _CREATION, "http or https", to="ftp://h/x"),
    _subscribe("no host", _CREATION, "names no usable host", to="http:///x"),
    _subscribe("a bad port", _CREATION, "not a URL", to="http://h:99999/"),
    _subscribe("port 0", _CREATION, "names no usable host and port", to="http://h:0/"),
    _subscribe("a space", _CREATION, "characters", to="http://h/a b"),
    _subscribe("too long", _CREATION, "longer than", to="http://h/" + "x" * 2048),
    _subscribe("anonymous", _CREATION, "not a usable address", to=f"{soap.WSA}/anonymous"),
    _subscribe("an unknown filter", "InvalidFilterFault", "{urn:x}F", filters='<x:F xmlns:x="urn:x"/>'),
    _subscribe("a content filter that is no XPath", _CONTENT, "too early", filters=soap.content_filter("o:order[")),
    _subscribe("too many content filters", _CONTENT, "16", filters=soap.content_filter("true()") * 17),
    _subscribe("a producer filter that is no XPath", _PRODUCER, "not available", filters=FETCHING),
    _subscribe("a bad expression", _TOPIC, "position 3", filters=soap.topic_expression("a//|")),
    _subscribe("an unbound prefix", _TOPIC, "nope", filters=soap.topic_expression("nope:a")),
    _subscribe("an expression with elements", _TOPIC, "text, not elements", filters=_ELEMENTS),
    _subscribe("over at once", _TERMINATION, "not in the future", termination="PT0S"),
    _subscribe("no time at all", _TERMINATION, "'soon'", termination="soon"),
    _malformed("a Subscribe as large as a notification may be", _LONG, "a Subscribe may have 65536 bytes", 413),
]


def _message(inside: str) -> str:
    return f"<wsnt:NotificationMessage>{inside}</wsnt:NotificationMessage>"


_HUGE_NAMESPACE = soap.envelope(soap.notify(*[soap.message("a", "<h:n/>")] * 200)).replace(
    b"<s:Body>", b"<s:Body xmlns:h='urn:" + b"h" * 50000 + b"'>"
)

NOTIFIES = [
    _operation("no message", "Client", "no wsnt:NotificationMessage", "<wsnt:Notify/>"),
    _notify("no topic", _TOPIC, "has no wsnt:Topic", _message("<wsnt:Message><a/></wsnt:Message>")),
    _notify("no payload element", "Client", "no wsnt:Message", _message("<wsnt:Topic>a</wsnt:Topic>")),
    _notify("text as payload", "Client", "with 0 elements", soap.message(payload="text")),
    _notify("two payloads", "Client", "with 2 elements", soap.message(payload="<a/><b/>")),
    _notify("an invalid second topic", _TOPIC, "is not allowed here", soap.message(), soap.message(topic="t:a//.")),
    _malformed("a huge namespace repeated in each message", _HUGE_NAMESPACE, "too large", 413),
    _notify("too deep", _TOPIC, "64", soap.message("t:" + "a/" * 70 + "a")),
]


PLACES = [
    BadRequest("GET at the broker", b"", 405, "", "by POST, not GET", method="GET"),
    BadRequest("elsewhere", _NOTIFY, 404, "", "/wsn/NotificationBroker", path="/"),
    BadRequest("no id", soap.envelope("<wsnt:Unsubscribe/>"), 404, "", "no such address", path="/wsn/subscriptions/"),
]

CASES = [*ENVELOPES, *HEADERS, *OPERATIONS, *SUBSCRIBES, *NOTIFIES, *PLACES]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_bad_requests(case: BadRequest) -> None:
    parts = GatewayParts(GatewaySettings(max_body_bytes=LIMIT))
    answer = asyncio.run(parts.request(case.method, case.path, case.body, case.headers))
    assert (answer.status, answer.fault if case.fault else "") == (case.status, case.fault)
    assert case.words in (answer.reason if case.fault else answer.body.decode())
    if case.fault:
        oasis.validate(answer.body)
    assert (parts.control.records, parts.notifications.accepted) == ([], [])
