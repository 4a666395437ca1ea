"""Requests of web pages at the gateway: refused, or answered with the headers of CORS (Fetch, 3.2)."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from arborcast.core.security.web_pages import PageRule, page_headers
from arborcast.ingest.http.asgi import Headers, Scope, Send, header
from arborcast.wire.errors import PageRefused

# A page sees no other headers of an answer.
_SHOWN = b"arborcast-notification-id, retry-after, www-authenticate"

_PREFLIGHT_LASTS_S = b"600"


async def admit(rule: PageRule, scope: Scope, send: Send, *, links: bool = True) -> Send | None:
    """The `send` to answer a request with; None after the answer to a preflight request. `links` as in the rule. Raises
    PageRefused."""
    found = page_headers(scope["headers"])
    refusal = rule.refusal(scope["method"], found, links=links)
    if refusal:
        raise PageRefused(refusal)
    origin = found.get("origin")
    if origin not in rule.allowed_origins:
        return send
    shared = [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"origin")]
    method = header(scope["headers"], b"access-control-request-method")
    if scope["method"] != "OPTIONS" or not method:
        return _with(send, [*shared, (b"access-control-expose-headers", _SHOWN)])
    answer: Headers = [
        *shared,
        (b"access-control-allow-methods", b"GET, POST"),
        (b"access-control-allow-headers", header(scope["headers"], b"access-control-request-headers")),
        (b"access-control-max-age", _PREFLIGHT_LASTS_S),
    ]
    if header(scope["headers"], b"access-control-request-private-network") == b"true":
        answer.append((b"access-control-allow-private-network", b"true"))
    await send({"type": "http.response.start", "status": 204, "headers": answer})
    await send({"type": "http.response.body", "body": b""})
    return None


def _with(send: Send, headers: Headers) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *headers]}
        await send(message)

    return sending
