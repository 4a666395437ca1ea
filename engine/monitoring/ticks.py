"""Positions and labels of an axis's ticks: round numbers in a suitable unit. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Literal

Ticks = Sequence[tuple[float, str]]

"""(value, label), the smallest first."""

Unit = Literal["count", "rate", "seconds", "bytes", "share"]

"""A count is an integer."""

_LARGE = ((0.0, 1.0, ""), (10_000.0, 1e3, " k"), (1e6, 1e6, " M"), (1e9, 1e9, " G"))

# One unit for all labels of an axis: (from this top on, size, name).
_UNITS: dict[Unit, Sequence[tuple[float, float, str]]] = {
    "count": _LARGE,
    "rate": _LARGE,
    "seconds": ((0, 1e-3, " ms"), (1, 1, " s"), (180, 60, " min"), (10_800, 3_600, " h"), (259_200, 86_400, " d")),
    "bytes": ((0, 1, " B"), (2**10, 2**10, " KiB"), (2**20, 2**20, " MiB"), (2**30, 2**30, " GiB")),
    "share": ((0, 0.01, " %"),),
}

_DECIMAL = (1.0, 2.0, 5.0)

# Usual steps of time, in seconds.
_CLOCK = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)

_DAY = 86_400

# Common units of time, in milliseconds.
_TIMES = (
    *((10.0**power, f"{10.0**power:g} ms") for power in range(-3, 3)),
    (1e3, "1 s"),
    (1e4, "10 s"),
    (6e4, "1 min"),
    (6e5, "10 min"),
    (3.6e6, "1 h"),
    (3.6e7, "10 h"),
    (8.64e7, "1 d"),
    (8.64e8, "10 d"),
)


def linear(most: float, unit: Unit = "count", intervals: int = 5) -> Ticks:
    """From 0 to the first tick not below `most`, in up to `intervals` equal steps."""
    if not most > 0 or not math.isfinite(most):
        most = 0.01 if unit == "share" else 1.0
    step = _step(most / intervals, unit)
    count = max(1, math.ceil(most / step - 1e-9))
    size, name = next((size, name) for least, size, name in reversed(_UNITS[unit]) if count * step >= least)
    return [(0.0, "0"), *((number * step, f"{number * step / size:,.10g}{name}") for number in range(1, count + 1))]


def _step(least: float, unit: Unit) -> float:
    """The smallest round step that is not below `least`."""
    if unit == "count":
        return _decimal(max(least, 1.0))
    if unit == "bytes" and least > 1:
        return float(2 ** math.ceil(math.log2(least) - 1e-9))
    if unit == "seconds" and least > 1:
        days = _DAY * _decimal(least / _DAY) if least > _DAY else _DAY
        return float(next((step for step in _CLOCK if step >= least), days))
    return _decimal(least)


def _decimal(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least) + 1e-9)
    step = next((factor * power for factor in _DECIMAL if factor * power >= least * (1 - 1e-9)), 10 * power)
    # 3 * 0.1 is not 0.3: labels would show the difference.
    return float(f"{step:.6g}")


Ahead = Callable[[float], float]

"""By how many seconds the local time is ahead of UTC at a time."""


def utc(_at: float) -> float:
    return 0.0


def clock(begin: float, end: float, most: int = 5, ahead: Ahead = utc) -> Ticks:
    """Round local times between two, in seconds of the epoch; midnight is shown as its day."""
    least = max(end - begin, 1.0) / max(1, most)
    step = next((step for step in _CLOCK if step >= least), _DAY * math.ceil(least / _DAY))
    offsets = {ahead(begin), ahead(end)}
    found = [
        (number * step - offset, _clock_label(number * step, step))
        for offset in offsets
        for number in range(math.ceil((begin + offset) / step), int((end + offset) // step) + 1)
        if len(offsets) == 1 or ahead(number * step - offset) == offset
    ]
    return sorted(found)


def change_of(begin: float, end: float, ahead: Ahead) -> int:
    """The second in which the local time changes to that of the end, which differs from that of the begin."""
    return int(begin) + bisect_left(range(int(begin), int(end)), True, key=lambda at: ahead(at) != ahead(begin))


def _clock_label(at: float, step: float) -> str:
    when = datetime.fromtimestamp(at, UTC)
    if step >= _DAY or at % _DAY == 0:
        return f"{when.day} {when:%b}"
    return f"{when:%H:%M:%S}" if step < 60 else f"{when:%H:%M}"


def logarithmic(low_ms: float, high_ms: float) -> Ticks:
    """Decades of time, in milliseconds, that include both ends; with 2 and 5 between them if there are few."""
    low_ms = max(low_ms, _TIMES[0][0])
    inner = [number for number, (at, _) in enumerate(_TIMES) if low_ms < at < high_ms]
    first = max((number for number, (at, _) in enumerate(_TIMES) if at <= low_ms), default=0)
    last = min((number for number, (at, _) in enumerate(_TIMES) if at >= high_ms), default=len(_TIMES) - 1)
    decades = list(_TIMES[first : max(last, first + 1) + 1])
    if len(inner) > 1 or decades[-1][0] > 1e4:
        return decades
    between = [(at * factor, _time_label(at * factor)) for at, _ in decades[:-1] for factor in (2, 5)]
    return sorted([*decades, *between])


def _time_label(milliseconds: float) -> str:
    return f"{milliseconds:g} ms" if milliseconds < 1_000 else f"{milliseconds / 1_000:g} s"
