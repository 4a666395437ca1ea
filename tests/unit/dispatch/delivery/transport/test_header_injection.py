"""Stored values with line breaks add no header and no request, with either transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from arborcast.core.errors import ArborcastError
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.transport.contract import Transport
from arborcast.topic_model.subscriptions import EndpointReference, SoapVersion, Subscription
from tests.support.make import notification
from tests.support.receiver import Receiver
from tests.support.sealed import SECRET_OPENER, protected
from tests.support.transports import push

# Line breaks for some parser, and characters that are changed on the way.
BREAKS = {
    "CRLF": "\r\n",
    "LF": "\n",
    "CR": "\r",
    "NUL": "\x00",
    "NEL": "\x85",
    "line separator": "\u2028",
    "beyond Latin-1, ending in LF's byte": "\u010a",
    "folded": "\r\n ",
    "an end of the head": "\r\n\r\n",
}
EVIL = "X-Evil: 1"

EXPECTED = {
    *("host", "accept", "user-agent", "content-type", "content-length", "soapaction", "authorization"),
    *("arborcast-subscription", "arborcast-notification-id", "arborcast-attempt", "arborcast-replay", "traceparent"),
    *("webhook-id", "webhook-timestamp", "webhook-signature", "accept-encoding", "connection"),
}


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize(
    "field", ["subscription", "notification", "replay", "traceparent", "topic", "address", "path", "host", "several"]
)
@pytest.mark.parametrize("soap", ["1.1", "1.2"])
def test_no_stored_text_begins_a_header(
    make: Callable[..., Transport], receiver: Receiver, field: str, how: str, soap: SoapVersion
) -> None:
    evil = f"x{BREAKS[how]}{EVIL}"
    url = receiver.url("/")
    if field == "path":
        url += evil
    elif field == "host":
        url = url.replace("127.0.0.1", f"127.0.0.1{BREAKS[how]}{EVIL}")
    target = Subscription(
        evil if field == "subscription" else "s1",
        EndpointReference(url),
        address=evil if field == "address" else "http://broker/s1",
        soap=soap,
        addressing=True,
    )
    names = ["n1", evil, "n3"] if field == "several" else [evil if field == "notification" else "n1"]
    marks: dict[str, Any] = {name: evil for name in ("replay", "traceparent") if name == field}
    stored = [notification(name, f"a/{evil}" if field == "topic" else "a", **marks) for name in names]
    before, connections = len(receiver.requests), receiver.connections
    signed = protected(target, (b"s" * 32, None), authorization=b"Bearer abc")
    try:
        request = Envelope(signed, SECRET_OPENER).request(stored, 1, 1_800_000_000.0)
    except (ArborcastError, ValueError):
        return  # refused before there is a request
    result = push(make(total_timeout_s=10), request.url, request.body, request.headers)
    if field in ("path", "host"):
        assert result.failure == "address", "invalid URLs are refused"
        assert receiver.connections == connections
        return
    assert result.status == 202, result
    (received,) = receiver.requests[before:]
    found = {name.lower() for name in received.headers}
    assert found <= EXPECTED, found - EXPECTED
    assert {"webhook-signature", "authorization", "arborcast-subscription"} <= found
    assert all(value.isascii() and value.isprintable() for value in received.headers.values())
