from __future__ import annotations

import pytest

from arborcast.core.telemetry.tracing import read_traceparent, shared, trace_of

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
LEGAL = f"00-{TRACE}-{PARENT}-01"


@pytest.mark.parametrize(
    ("header", "kept"),
    [
        (LEGAL, LEGAL),
        (f" {LEGAL}\t", LEGAL),
        (f"00-{TRACE}-{PARENT}-00", f"00-{TRACE}-{PARENT}-00"),
        # Of a later version what we know of it.
        (f"cc-{TRACE}-{PARENT}-01", LEGAL),
        (f"cc-{TRACE}-{PARENT}-01-and-more", LEGAL),
        # What the recommendation calls illegal.
        ("", ""),
        (f"00-{TRACE}-{PARENT}-01-more", ""),
        (f"ff-{TRACE}-{PARENT}-01", ""),
        (f"00-{TRACE.upper()}-{PARENT}-01", ""),
        (f"00-{'0' * 32}-{PARENT}-01", ""),
        (f"00-{TRACE}-{'0' * 16}-01", ""),
        (f"00-{TRACE[:-1]}-{PARENT}-01", ""),
        (f"00-{TRACE}-{PARENT}-0", ""),
        (f"{LEGAL}\r\nX-Evil: 1", ""),
        (f"cc-{TRACE}-{PARENT}-01-" + "x" * 1000, ""),
    ],
)
def test_a_header_counts_or_it_does_not(header: str, kept: str) -> None:
    assert read_traceparent(header) == kept


def test_several_share_a_context_when_they_are_of_one_trace() -> None:
    other_span = f"00-{TRACE}-{PARENT[::-1]}-01"
    other_trace = f"00-{TRACE[::-1]}-{PARENT}-01"
    assert trace_of(LEGAL) == TRACE
    assert shared([]) == shared(["", ""]) == ""
    assert shared(["", LEGAL, "", other_span]) == LEGAL
    assert shared([LEGAL, other_trace]) == ""
    assert shared([LEGAL, "", other_trace, LEGAL]) == ""
