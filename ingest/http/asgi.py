"""ASGI messages: reading a request's body and head, sending an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from arborcast.core.telemetry.tracing import read_traceparent
from arborcast.wire import limits
from arborcast.wire.errors import Compressed, TooLarge

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

TEXT = b"text/plain; charset=utf-8"

UNACKNOWLEDGED = "arborcast.unacknowledged"
"""Where a request's scope has a function: the bytes of the answer that the client's system has not acknowledged."""


async def read_body(headers: Headers, receive: Receive, limit: int, *, keep: bool = True) -> bytes | None:
    """The whole body, None when the client has disconnected. Raises TooLarge as early as possible, or Compressed.

    Without `keep`, it is read and discarded.
    """
    encoding = header(headers, b"content-encoding").strip().lower()
    if encoding not in (b"", b"identity"):
        raise Compressed(
            f"a body with Content-Encoding {encoding.decode('latin-1')[:60]} is not accepted: send it uncompressed"
        )
    declared = header(headers, b"content-length")
    if declared.isdigit() and int(declared) > limit:
        raise TooLarge(f"the request has {int(declared)} bytes, more than {limit}")
    # Not as a list: for a body that arrives byte by byte that would be many times as large.
    whole, size, more = bytearray(), 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise TooLarge(f"the request has more than {limit} bytes")
        more = message.get("more_body", False)
        if not (more or whole):
            return piece  # nearly every request arrives in one piece
        if keep:
            whole += piece
    return bytes(whole)


async def until_disconnected(receive: Receive) -> None:
    """Return when the client has hung up; only after everything was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def header(headers: Headers, name: bytes) -> bytes:
    """The first value of a header, empty without one."""
    for key, value in headers:
        if key == name:
            return value
    return b""


def traceparent_of(headers: Headers) -> str:
    """The trace that a request belongs to, empty for none (W3C Trace Context)."""
    found = [value for key, value in headers if key == b"traceparent"]
    # Two of them are ambiguous.
    return read_traceparent(found[0].decode("latin-1")) if len(found) == 1 else ""


async def send_answer(send: Send, status: int, body: bytes, content_type: bytes, extra: Headers | None = None) -> None:
    """Send an answer; of a large one, return when the client has read nearly all, or has disconnected."""
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode()), *(extra or ())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if len(body) > limits.SMALL_REQUEST:
        # The end can be sent when the client has read nearly all.
        await send({"type": "http.response.body", "body": body, "more_body": True})
        body = b""
    await send({"type": "http.response.body", "body": body})


async def send_text(send: Send, status: int, text: str, extra: Headers | None = None) -> None:
    """Send a line of text."""
    await send_answer(send, status, f"{text}\n".encode(errors="replace"), TEXT, extra)
