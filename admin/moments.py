"""Points in time, in the format of commands and pages."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(ms: int) -> str:
    """Milliseconds since the epoch as local time, for people."""
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone().isoformat(sep=" ", timespec="milliseconds")


def iso(ms: int) -> str:
    """The same as ISO 8601, for JSON."""
    return moment(ms).replace(" ", "T")
