"""From the result of a request to the outcome of a push. Pure.

Any 2xx is a delivery, whatever came after the status line: the receiver has taken the message, and asking again would
only produce a duplicate. Redirects are failures: following them would let a receiver point our pushes at anyone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from arborcast.core.errors import SecretError
from arborcast.dispatch.delivery.transport.contract import PushResult
from arborcast.dispatch.logs.attempts import ErrorClass

# The answer is cut off and may be anything, so it is not parsed: every stack writes the fault code at the beginning.
# SOAP 1.1 calls the sender Client; both may have a prefix, and 1.1's a refinement after a dot. No tag reaches over the
# beginning of the next, or an answer of nothing but beginnings would be looked through once for each.
_SENDER_FAULT = re.compile(
    rb"<(?:[\w.-]+:)?(?:faultcode|Value)(?:\s[^<>]*+)?>\s*+(?:[\w.-]+:)?(?:Client|Sender)(?:\.[\w.]++)?\s*+</"
)


def blames_sender(response: bytes) -> bool:
    """Whether an answer's beginning is a SOAP fault that says that the message itself is wrong."""
    return _SENDER_FAULT.search(response) is not None


# Failures after which trying the same endpoint again at once would only cost the next time-out.
_AWAY: frozenset[str] = frozenset({"dns", "connect", "tls", "timeout"})

# What a proxy says whose backend is away, and what an overloaded receiver says: of the endpoint, not of the message.
_AWAY_STATUSES = frozenset({429, 502, 503, 504})

# Nothing that the receiver could do would make another try succeed.
_HOPELESS: frozenset[str] = frozenset({"address", "envelope"})


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a push. `error` is empty when it was delivered; `hopeless` means that trying again is pointless:
    the receiver says in a SOAP fault that the message is wrong, or there is nothing that it could be sent to."""

    error: ErrorClass
    detail: str
    status: int = 0
    hopeless: bool = False

    @property
    def delivered(self) -> bool:
        return not self.error

    @property
    def taken(self) -> bool:
        """Whether the receiver has taken the message, be it that it says later how it ended."""
        return not self.error or self.error == "later"

    @property
    def blames_message(self) -> bool:
        """Whether the message is to blame, and not the endpoint."""
        return 400 <= self.status < 500 or self.hopeless

    @property
    def endpoint_unreachable(self) -> bool:
        """Whether the endpoint cannot be served for now, whatever the message."""
        return self.error in _AWAY or self.status in _AWAY_STATUSES


DELIVERED = Outcome("", "")


def classify(result: PushResult, result_by_ms: int = 0) -> Outcome:
    """What the result of a push means, whose receiver may say until then how it ended."""
    status = result.status
    if result.sent:
        return Outcome("", "sent as a datagram, which nobody confirms")
    if result.later and result_by_ms:
        return Outcome("later", f"HTTP {status}: its receiver says later how it ended", status)
    if 200 <= status < 300:
        return Outcome("", "", status)
    if 300 <= status < 400:
        return Outcome("redirect", f"HTTP {status}: redirects are not followed", status)
    if 400 <= status < 500:
        return Outcome("client-error", f"HTTP {status}", status, blames_sender(result.response))
    if 500 <= status < 600:
        return Outcome("server-error", f"HTTP {status}", status, blames_sender(result.response))
    if result.failure:
        return failed(result.failure, result.detail)
    return failed("protocol", f"HTTP status {status} is none that a receiver may answer with")


def unwritable(error: Exception) -> Outcome:
    """No message could be made for a subscription. A secret that cannot be opened may be opened once its key is there
    again; anything else stays as it is."""
    return failed("internal" if isinstance(error, SecretError) else "envelope", str(error))


def failed(error: ErrorClass, detail: str) -> Outcome:
    """A push without an answer, or without being one at all."""
    return Outcome(error, detail, 0, error in _HOPELESS)
