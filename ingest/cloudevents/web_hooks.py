"""Validation of a delivery target, as HTTP 1.1 Web Hooks for Event Delivery 1.0 has it (section 4): an OPTIONS request.

A target agrees in its answer: callbacks and rates are not requested (docs/cloudevents.md).
"""

from __future__ import annotations

from urllib.parse import urlsplit

from arborcast.core.http_client import HttpAnswer
from arborcast.ingest.http.asgi import Headers, header

ORIGIN, _ALLOWED_ORIGIN, _ALLOWED_RATE = "WebHook-Request-Origin", "WebHook-Allowed-Origin", "WebHook-Allowed-Rate"

_ANY = "*"


def agreement(headers: Headers, per_minute: int) -> Headers | None:
    """The headers of the answer to a sender that requests the right to publish; None for another request. `per_minute`
    is the rate that one client is granted, 0 for no limit."""
    origin = header(headers, ORIGIN.lower().encode())
    if not origin:
        return None
    rate = str(per_minute) if per_minute else _ANY
    return [
        (b"allow", b"POST"),
        (_ALLOWED_ORIGIN.lower().encode(), origin),
        (_ALLOWED_RATE.lower().encode(), rate.encode()),
    ]


def request_headers(base: str) -> dict[str, str]:
    """The headers of the request to a target, of the engine at the address `base`."""
    return {ORIGIN: urlsplit(base).hostname or "localhost"}


def agrees(answer: HttpAnswer, base: str) -> bool:
    """Whether a target has agreed to pushes of the engine at the address `base`."""
    allowed = answer.headers.get(_ALLOWED_ORIGIN, "").strip().lower()
    return 200 <= answer.status < 300 and allowed in (_ANY, request_headers(base)[ORIGIN].lower())
