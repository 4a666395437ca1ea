"""Whatever arrives is carried out, or refused as the client's fault: never an internal error, never half done."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts

_ADDRESS = "<wsnt:SubscriptionReference><wsa:Address>http://127.0.0.1:8080/wsn/subscriptions/x</wsa:Address></wsnt:SubscriptionReference>"
_SEEDS = [
    soap.envelope(soap.notify(soap.message(), soap.message("t:a", "<n><![CDATA[<]]>&#65;<!-- c --></n>"))),
    soap.envelope(soap.subscribe("http://h/c", soap.topic_expression("t:a//.|t:b/*"), "PT10M"), "1.2"),
    soap.envelope(
        soap.renew("2030-01-01T00:00:00Z"), "1.2", soap.addressing("urn:a", to="http://h/wsn/subscriptions/x")
    ),
    soap.envelope(f"<wsnt:Unsubscribe>{_ADDRESS}</wsnt:Unsubscribe>"),
]
_SNIPPETS = [
    *(
        b"<",
        b">",
        b"&",
        b'"',
        b"'",
        b"/",
        b":",
        b"]]>",
        b"<!--",
        b"-->",
        b"<![CDATA[",
        b"<?",
        b"?>",
        b"\x00",
        b"\xff",
        b" ",
    ),
    *(
        b"&lt;",
        b"&#0;",
        b"&x;",
        b"<!DOCTYPE a>",
        b"xmlns=''",
        b"xmlns:s='urn:x'",
        b"xml:lang='x'",
        b"-",
        b"[",
        b"{",
        b"}",
    ),
    *(
        b"wsnt:Notify",
        b"wsnt:Topic",
        b"wsa:Address",
        b"s:Body",
        b"s:Header",
        "\u202e\U0001f4a9".encode(),
        b"PT",
        b"9" * 40,
    ),
]


@st.composite
def _spoiled(draw: st.DrawFn) -> bytes:
    message = draw(st.sampled_from(_SEEDS))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(message)))
        end = min(len(message), start + draw(st.sampled_from([0, 0, 1, 3, 10, 60])))
        message = message[:start] + draw(st.sampled_from([b"", *_SNIPPETS])) + message[end:]
    return message


def _check(body: bytes, path: str) -> None:
    parts = GatewayParts()
    answer = parts.post(body, path)
    assert answer.status in (200, 202, 400, 500)
    if answer.status in (400, 500):
        assert answer.reason != "internal error"
        assert parts.control.records == []
        assert parts.notifications.accepted == []


@given(_spoiled(), st.sampled_from(["/wsn/NotificationBroker", "/wsn/subscriptions/x"]))
def test_spoiled_messages(body: bytes, path: str) -> None:
    _check(body, path)


@given(st.binary(max_size=200))
def test_any_bytes(body: bytes) -> None:
    _check(body, "/wsn/NotificationBroker")


@given(st.text(st.characters(codec="utf-8", exclude_characters="<&"), max_size=60))
def test_any_text_where_text_is_expected(text: str) -> None:
    for body in (
        soap.subscribe(text),
        soap.subscribe(filters=soap.topic_expression(text)),
        soap.subscribe(termination=text),
        soap.notify(soap.message(text)),
        f"<wsnt:Unsubscribe><wsa:Address>{text}</wsa:Address></wsnt:Unsubscribe>",
    ):
        _check(soap.envelope(body), "/wsn/NotificationBroker")
