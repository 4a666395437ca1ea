"""Trace contexts (W3C Trace Context, version 00): which trace of its publisher a notification belongs to.

Kept as the text of the `traceparent` header, in lower case, so that it can be found in tables as it was sent. What is
no legal one counts for none: a publisher's mistake in it is no reason to refuse a notification. `tracestate` is not
kept: it is for the systems that wrote it, and a notification may be pushed long after their trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

HEADER = "traceparent"

# Later versions may go on behind the flags; what stands before keeps its meaning.
_FORM = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<ids>(?P<trace>[0-9a-f]{32})-(?P<parent>[0-9a-f]{16})-[0-9a-f]{2})(?P<more>-.*)?"
)

_NO_TRACE = "0" * 32
_NO_PARENT = "0" * 16
_LONGEST = 512


def read_traceparent(text: str) -> str:
    """What a header says, in the form of version 00; empty when that is nothing that counts."""
    text = text.strip(" \t")
    match = _FORM.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None or match["version"] == "ff" or (match["version"] == "00" and match["more"]):
        return ""
    if match["trace"] == _NO_TRACE or match["parent"] == _NO_PARENT:
        return ""
    return f"00-{match['ids']}"


def trace_of(traceparent: str) -> str:
    """The trace's id, empty for none."""
    return traceparent[3:35]


def is_sampled(traceparent: str) -> bool:
    """Whether the trace is one that is recorded."""
    return bool(int(traceparent[-2:], 16) & 1)


def shared(traceparents: Iterable[str]) -> str:
    """The context of a push that carries several notifications: the first one's, if all that have one are of the same
    trace; empty otherwise, because it would put the others into a trace that is not theirs."""
    first = ""
    for each in traceparents:
        if each and not first:
            first = each
        elif each and trace_of(each) != trace_of(first):
            return ""
    return first
