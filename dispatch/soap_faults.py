"""Whom a SOAP fault blames, seen in the first bytes of a receiver's answer. Pure."""

from __future__ import annotations

import re

# The answer is cut off and may be anything, so it is not parsed: every stack writes the fault code at the beginning.
# SOAP 1.1 calls the sender Client; both may have a prefix, and 1.1's a refinement after a dot. No tag reaches over the
# beginning of the next, or an answer of nothing but beginnings would be looked through once for each.
_SENDER_FAULT = re.compile(
    rb"<(?:[\w.-]+:)?(?:faultcode|Value)(?:\s[^<>]*+)?>\s*+(?:[\w.-]+:)?(?:Client|Sender)(?:\.[\w.]++)?\s*+</"
)


def blames_sender(response: bytes) -> bool:
    """Whether an answer's beginning is a SOAP fault that says that the message itself is wrong."""
    return _SENDER_FAULT.search(response) is not None
