"""Times as text, and in an operator's words."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from arborcast.core.errors import ConfigError
from arborcast.core.wall_clock import time_ms

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")

_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def moment(ms: int) -> str:
    """Milliseconds since the epoch as local time, for people."""
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone().isoformat(sep=" ", timespec="milliseconds")


def iso(ms: int) -> str:
    """The same as ISO 8601, for JSON."""
    return moment(ms).replace(" ", "T")


def beginning(text: str, now: float, what: str = "since") -> float:
    """Seconds of the epoch, for a span before `now` (30m, 2h) or an ISO time (in this machine's zone without one); 0
    for a time before the epoch.

    Raises ConfigError for other texts.
    """
    span = _SPAN.fullmatch(text.strip())
    if span:
        return max(0.0, now - float(span[1]) * _SECONDS[span[2]])
    try:
        at = datetime.fromisoformat(text.strip())
        return max(0.0, (at if at.tzinfo else at.astimezone()).timestamp())
    except (ValueError, OverflowError) as error:
        raise ConfigError(
            f"{what} {text}: write a span such as 30m, 2h or 7d, or a time such as 2026-01-31T12:00"
        ) from error


def moment_ms(what: str, text: str) -> int:
    """Milliseconds of the epoch, for a span before now (1h) or an ISO time. Raises ConfigError."""
    return round(beginning(text, time.time(), what) * 1000)


def period_ms(since: str, until: str) -> tuple[int, int | None]:
    """The period between two such times; an empty `until` is now. Raises ConfigError for one that ends before it
    begins: nothing would be in it, and nothing wrong."""
    since_ms, until_ms = moment_ms("since", since), moment_ms("until", until) if until else None
    if since_ms > (time_ms() if until_ms is None else until_ms):
        raise ConfigError(f"since {since} is later than until {until or 'now'}: a span such as 2h is a time before now")
    return since_ms, until_ms
