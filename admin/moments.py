"""Points in time, in the form in which commands and pages show them."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(ms: int) -> str:
    """Milliseconds since the epoch as local time."""
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone().isoformat(sep=" ", timespec="milliseconds")
