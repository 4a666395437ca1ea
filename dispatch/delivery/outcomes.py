"""From the result of a request to the outcome of a push. Pure.

Any 2xx is a delivery, whatever follows the status line: the receiver has accepted the message. Redirects are failures:
following them would let a receiver redirect pushes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from arborcast.dispatch.delivery.transport.contract import PushResult
from arborcast.dispatch.logs.attempts import ErrorClass

# The answer is cut off and may be anything, so it is not parsed: every stack writes the fault code at the beginning.
# SOAP 1.1 calls the sender Client; both may have a prefix, and 1.1's a refinement after a dot. A tag ends before the
# next `<`: otherwise an answer of many `<` would take quadratic time.
_SENDER_FAULT = re.compile(
    rb"<(?:[\w.-]+:)?(?:faultcode|Value)(?:\s[^<>]*+)?>\s*+(?:[\w.-]+:)?(?:Client|Sender)(?:\.[\w.]++)?\s*+</"
)


def is_sender_fault(response: bytes) -> bool:
    """Whether an answer begins with a SOAP fault of the sender."""
    return _SENDER_FAULT.search(response) is not None


# Failures after which another push to the endpoint would only cost another time-out.
_UNREACHABLE: frozenset[str] = frozenset({"dns", "connect", "tls", "timeout"})

# Statuses of a proxy without its backend, and of an overloaded receiver: about the endpoint, not the message.
_UNREACHABLE_STATUSES = frozenset({429, 502, 503, 504})

# Failures that no later attempt can change.
_HOPELESS: frozenset[str] = frozenset({"address", "envelope"})


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a push. `error` is empty for a delivery; `hopeless`: a retry is pointless, since the receiver's
    SOAP fault blames the message, or there is nothing to send it to."""

    error: ErrorClass
    detail: str
    status: int = 0
    hopeless: bool = False

    @property
    def delivered(self) -> bool:
        return not self.error

    @property
    def taken(self) -> bool:
        """Whether the receiver has accepted the message, possibly with a later result."""
        return not self.error or self.error == "later"

    @property
    def is_message_error(self) -> bool:
        """Whether the failure is about the message, not the endpoint."""
        return 400 <= self.status < 500 or self.hopeless

    @property
    def endpoint_unreachable(self) -> bool:
        """Whether the endpoint cannot be served for now, whatever the message."""
        return self.error in _UNREACHABLE or self.status in _UNREACHABLE_STATUSES


DELIVERED = Outcome("", "")


def classify(result: PushResult, result_by_ms: int = 0) -> Outcome:
    """The outcome of a result. `result_by_ms`: the deadline of a later result, 0 if none is accepted."""
    status = result.status
    if result.sent:
        return Outcome("", "sent as a datagram, without confirmation")
    if result.later and result_by_ms:
        return Outcome("later", f"HTTP {status}: its receiver reports the result later", status)
    if 200 <= status < 300:
        return Outcome("", "", status)
    if 300 <= status < 400:
        return Outcome("redirect", f"HTTP {status}: redirects are not followed", status)
    if 400 <= status < 600:
        error: ErrorClass = "client-error" if status < 500 else "server-error"
        return Outcome(error, f"HTTP {status}", status, is_sender_fault(result.response))
    if result.failure:
        return failed(result.failure, result.detail)
    return failed("protocol", f"HTTP status {status} is not a valid answer of a receiver")


def failed(error: ErrorClass, detail: str) -> Outcome:
    """The outcome of a push that got no answer, or was not sent."""
    return Outcome(error, detail, 0, error in _HOPELESS)
