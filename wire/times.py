"""Termination times: reading dateTime and duration, and writing times in a form that all clients accept.

Pure: the current time is an argument. Granted times are rounded up to seconds: answers have no fractions (some clients
cannot read them), and the granted time must not be shorter than the answer.
"""

from __future__ import annotations

import calendar
import math
import re
import time
from datetime import UTC, datetime, timedelta

from arborcast.wire.errors import UnacceptableTermination

# Later times are mistakes; datetime ends at 9999.
LATEST = datetime(9000, 1, 1, tzinfo=UTC)

_DURATION = re.compile(
    r"(-)?P(?=[0-9T])(?:([0-9]{1,9})Y)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9})D)?"
    r"(?:T(?=[0-9.])(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,12}(?:\.[0-9]+)?|\.[0-9]+)S)?)?"
)

# Not \d: it and int() accept the digits of forty scripts, XML Schema only ASCII.
_DATE_TIME = re.compile(
    r"([0-9]{4,})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?(Z|[+-][0-9]{2}:[0-9]{2})?"
)

# .NET and databases write a time of this day for "never", in any time zone.
_LAST_DAY = (9999, 12, 31)


def grant(text: str, now: datetime, *, initial: bool) -> datetime | None:
    """The time of a requested termination, rounded up to a second; None for no termination.

    A duration counts from `now`; a dateTime without a zone is UTC. Raises UnacceptableTermination if the text is
    neither, or the time is not in the future; `initial` selects its fault.
    """
    text = text.strip()
    try:
        moment = _moment(text, now)
    except (ValueError, OverflowError) as error:
        raise UnacceptableTermination(
            f"{text[:60]!r} is neither a dateTime nor a duration that can be granted ({error})",
            _whole_second(now),
            initial=initial,
        ) from error
    if moment is None:
        return None
    if moment <= now:
        raise UnacceptableTermination(
            f"the termination time {text[:60]!r} is not in the future", _whole_second(now), initial=initial
        )
    return _whole_second(moment)


def duration_s(text: str, now: datetime) -> float:
    """The seconds of a duration from `now`, at least 0. Raises ValueError."""
    duration = _DURATION.fullmatch(text.strip())
    if duration is None:
        raise ValueError(f"{text.strip()[:60]!r} is not a duration (an example: PT10S)")
    try:
        return max(0.0, (_after(now, duration) - now).total_seconds())
    except OverflowError as error:
        raise ValueError(f"{text.strip()[:60]!r} is too long") from error


def date_time(text: str) -> datetime | None:
    """The time of a dateTime, in UTC without a zone; None for "never". Raises ValueError or OverflowError."""
    found = _DATE_TIME.fullmatch(text.strip())
    if found is None:
        raise ValueError("an example: 2030-01-31T12:00:00Z")
    year, month, day = (int(part) for part in found.groups()[:3])
    if (year, month, day) == _LAST_DAY:
        _date_time(found, 2000, month, day)  # checks the time of day
        return None
    moment = _date_time(found, year, month, day)
    if moment > LATEST:
        raise ValueError(f"later than the year {LATEST.year}")
    return moment


def is_last_day(moment: datetime) -> bool:
    """Whether a time means "never"."""
    return (moment.year, moment.month, moment.day) == _LAST_DAY


def written(moment: datetime) -> str:
    """A time for an answer: UTC with `Z`, truncated to seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_ms(moment: datetime) -> int:
    """Milliseconds since the epoch."""
    return round(moment.timestamp() * 1000)


def from_ms(milliseconds: int) -> datetime:
    """The time for milliseconds since the epoch."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _moment(text: str, now: datetime) -> datetime | None:
    if duration := _DURATION.fullmatch(text):
        moment = _after(now, duration)
        if moment > LATEST:
            raise ValueError(f"later than the year {LATEST.year}")
        return moment
    if not _DATE_TIME.fullmatch(text):
        raise ValueError("examples: 2030-01-31T12:00:00Z, PT10M")
    return date_time(text)


def _after(now: datetime, duration: re.Match[str]) -> datetime:
    sign, years, months, days, hours, minutes, seconds = duration.groups()
    direction = -1 if sign else 1
    start = _add_months(now, direction * (int(years or 0) * 12 + int(months or 0)))
    span = timedelta(days=int(days or 0), hours=int(hours or 0), minutes=int(minutes or 0), seconds=float(seconds or 0))
    return start + direction * span


def _add_months(moment: datetime, months: int) -> datetime:
    """Add months by XML Schema: the day of the month stays, or becomes the last day of a shorter month."""
    total = moment.year * 12 + moment.month - 1 + months
    year, month = divmod(total, 12)
    if not 1 <= year <= LATEST.year:
        raise ValueError("out of range")
    day = min(moment.day, calendar.monthrange(year, month + 1)[1])
    return moment.replace(year=year, month=month + 1, day=day)


def _date_time(match: re.Match[str], year: int, month: int, day: int) -> datetime:
    hour, minute, second = (int(part) for part in match.groups()[3:6])
    fraction = float(f"0.{match[7] or 0}")
    # XML Schema writes the end of a day as 24:00:00.
    midnight = hour == 24 and minute == 0 and second == 0 and fraction == 0
    moment = datetime(year, month, day, 0 if midnight else hour, minute, second, tzinfo=UTC)
    moment += timedelta(days=1 if midnight else 0, seconds=fraction)
    zone = match[8]
    if zone is not None and zone != "Z":
        offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[4:6]))
        if offset > timedelta(hours=14):
            raise ValueError("zone beyond 14:00")
        moment += offset if zone[0] == "-" else -offset
    return moment


def _whole_second(moment: datetime) -> datetime:
    return datetime.fromtimestamp(math.ceil(moment.timestamp()), UTC)


def utc_now() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC)
