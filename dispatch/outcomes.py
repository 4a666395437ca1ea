"""From what the wire said to what it means for the delivery. Pure.

Any 2xx is a delivery, whatever came after the status line: the receiver has taken the message, and asking again would
only produce a duplicate. Redirects are failures: following them would let a receiver point our pushes at anyone.
"""

from __future__ import annotations

from dataclasses import dataclass

from dispatch.attempts import ErrorClass, State
from dispatch.transport.contract import PushResult

# Failures after which trying the same endpoint again within the same batch would only cost the next time-out.
_AWAY: frozenset[str] = frozenset({"address", "dns", "connect", "tls", "timeout"})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a push came to."""

    state: State
    error: ErrorClass
    detail: str

    @property
    def endpoint_away(self) -> bool:
        """Whether further pushes to this endpoint are pointless for now."""
        return self.error in _AWAY


_DELIVERED = Outcome("delivered", "", "")


def classify(result: PushResult) -> Outcome:
    """What the result of a push means."""
    status = result.status
    if 200 <= status < 300:
        return _DELIVERED
    if 300 <= status < 400:
        return Outcome("failed", "redirect", f"HTTP {status}: redirects are not followed")
    if 400 <= status < 500:
        return Outcome("failed", "client-error", f"HTTP {status}")
    if 500 <= status < 600:
        return Outcome("failed", "server-error", f"HTTP {status}")
    if result.failure:
        return Outcome("failed", result.failure, result.detail)
    return Outcome("failed", "protocol", f"HTTP status {status} is none that a receiver may answer with")
