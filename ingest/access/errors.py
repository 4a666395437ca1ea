"""Refusals of what asks, not of what it says.

PeerError
└── AccessRefused            knows the HTTP status and the headers that go with it
    └── TooManyRequests          (429) over the rate; when to come again
"""

from __future__ import annotations

import math

from topic_model.errors import PeerError


class AccessRefused(PeerError):
    """A request that is not carried out because of who asks. Nothing has changed."""

    fault = "Client"
    status = 403

    def headers(self) -> list[tuple[bytes, bytes]]:
        """HTTP headers of the answer."""
        return []


class TooManyRequests(AccessRefused):
    """The client is over its rate. `retry_after_s` is when it will be below."""

    status = 429

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = max(1, math.ceil(retry_after_s))

    def headers(self) -> list[tuple[bytes, bytes]]:
        """When to come again."""
        return [(b"retry-after", str(self.retry_after_s).encode())]
