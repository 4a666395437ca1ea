"""Refusals of what asks, not of what it says.

PeerError
└── AccessRefused            knows the HTTP status and the headers that go with it
    ├── TooManyRequests          (429) over the rate; when to come again
    ├── NotAuthenticated         (401) who it is, is not known; one of WS-Security's faults
    │   └── TokenRefused             (500, as SOAP has it) a WS-Security header that does not do
    └── Forbidden                (403, or a declared fault of the operation) it is known, and may not do that

InfrastructureError
└── IdentitiesAway           who it is cannot be found out now
"""

from __future__ import annotations

import math
from typing import Literal

from core.errors import InfrastructureError, PeerError

SecurityFault = Literal[
    "FailedAuthentication", "InvalidSecurity", "InvalidSecurityToken", "UnsupportedSecurityToken", "MessageExpired"
]
"""Faults of WS-Security (SOAP Message Security 1.1, section 12), by their local names."""


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


class NotAuthenticated(AccessRefused):
    """No credentials, or none that prove anything. The message never says which part was wrong."""

    fault: str = "FailedAuthentication"
    status = 401

    def __init__(self, message: str, challenges: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.challenges = challenges

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What would be taken."""
        return [(b"www-authenticate", challenge.encode()) for challenge in self.challenges]


class TokenRefused(NotAuthenticated):
    """A WS-Security header with which nobody is let in."""

    status = 500

    def __init__(self, message: str, fault: SecurityFault = "FailedAuthentication") -> None:
        super().__init__(message)
        self.fault = fault


class Forbidden(AccessRefused):
    """The caller may not do that. `fault` may be one that the operation declares."""

    def __init__(self, message: str, fault: str = "Client") -> None:
        super().__init__(message)
        self.fault = fault


class IdentitiesAway(InfrastructureError):
    """The directory of users does not answer."""
