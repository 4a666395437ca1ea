"""Small pictures as SVG text: lines over a quantity, and bars beside each other.

The same data always gives the same bytes, so that a page in the repository can be compared with its rendering.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 42, 60
_COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#8d6a9f", "#edae49", "#5c6b73")


@dataclass(frozen=True)
class Line:
    """One curve: (x, y) in rising order of x. Dashed ones are marks to compare with, not measurements."""

    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


def lines(title: str, across: str, up: str, curves: Sequence[Line], log_x: bool = True, log_y: bool = False) -> str:
    """Curves over one quantity. Points of no value (y <= 0 on a logarithmic axis) are left out."""
    curves = [
        Line(each.name, [(x, y) for x, y in each.points if (x > 0 or not log_x) and (y > 0 or not log_y)], each.dashed)
        for each in curves
    ]
    xs = [x for each in curves for x, _ in each.points]
    ys = [y for each in curves for _, y in each.points]
    if not xs:
        return _document(title, [_text(_WIDTH / 2, _HEIGHT / 2, "no measurements", "middle")])
    horizontal = _Axis.over(xs, log_x, _LEFT, _WIDTH - _RIGHT, from_zero=False)
    vertical = _Axis.over(ys, log_y, _HEIGHT - _BOTTOM, _TOP, from_zero=not log_y)
    body = _frame(horizontal, vertical, across, up)
    for number, each in enumerate(curves):
        colour = _COLOURS[number % len(_COLOURS)]
        places = [(horizontal.place(x), vertical.place(y)) for x, y in each.points]
        dashes = ' stroke-dasharray="6 4"' if each.dashed else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        if not each.dashed:
            body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in places]
    return _document(title, body + _legend([each.name for each in curves]))


def bars(
    title: str, up: str, groups: Sequence[str], series: Mapping[str, Sequence[float | None]], log_y: bool = False
) -> str:
    """Groups of bars; a bar without a value is missing, one with a value has it written on top."""
    values = [value for each in series.values() for value in each if value is not None and (value > 0 or not log_y)]
    if not values:
        return _document(title, [_text(_WIDTH / 2, _HEIGHT / 2, "no measurements", "middle")])
    vertical = _Axis.over(values, log_y, _HEIGHT - _BOTTOM, _TOP, from_zero=not log_y)
    body = _frame(None, vertical, "", up)
    step = (_WIDTH - _LEFT - _RIGHT) / len(groups)
    width = step * 0.8 / len(series)
    ground = vertical.place(vertical.low)
    for place, group in enumerate(groups):
        start = _LEFT + step * (place + 0.1)
        body.append(_text(_LEFT + step * (place + 0.5), _HEIGHT - _BOTTOM + 16, group, "middle"))
        for number, each in enumerate(series.values()):
            value = each[place]
            if value is None or (log_y and value <= 0):
                continue
            left, top = start + width * number, vertical.place(value)
            body.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{width * 0.92:.1f}" height="{ground - top:.1f}" '
                f'fill="{_COLOURS[number % len(_COLOURS)]}"/>'
            )
            body.append(_text(left + width / 2, top - 4, short(value), "middle", 9))
    return _document(title, body + _legend(list(series)))


def short(value: float) -> str:
    """A number as it is written at an axis: 1.5k, 30M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    logarithmic: bool
    begin: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], logarithmic: bool, begin: float, end: float, from_zero: bool) -> _Axis:
        low, high = min(values), max(values)
        if logarithmic:
            low, high = 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high))
            high = high if high > low else low * 10
        else:
            low = 0.0 if from_zero else low
            high = high if high > low else low + 1
            high += (high - low) * 0.08 if from_zero else 0.0
        return cls(low, high, logarithmic, begin, end)

    def place(self, value: float) -> float:
        if self.logarithmic:
            share = (math.log10(value) - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low))
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> list[float]:
        if self.logarithmic:
            powers = range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)
            return [10.0**power for power in powers]
        raw = (self.high - self.low) / 5
        magnitude = 10.0 ** math.floor(math.log10(raw))
        step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= raw)
        count = math.floor((self.high - self.low) / step + 1e-9)
        first = math.ceil(self.low / step - 1e-9) * step
        return [first + step * number for number in range(count + 1) if first + step * number <= self.high + 1e-9]


def _frame(horizontal: _Axis | None, vertical: _Axis, across: str, up: str) -> list[str]:
    body = []
    for tick in vertical.ticks():
        y = vertical.place(tick)
        body.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        body.append(_text(_LEFT - 6, y + 4, short(tick), "end"))
    for tick in horizontal.ticks() if horizontal else ():
        assert horizontal is not None
        x = horizontal.place(tick)
        body.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_HEIGHT - _BOTTOM}" stroke="#eee"/>')
        body.append(_text(x, _HEIGHT - _BOTTOM + 16, short(tick), "middle"))
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    turned = f'text-anchor="middle" transform="rotate(-90 16 {middle:.1f})"'
    body.append(f'<text x="16" y="{middle:.1f}" {turned}>{escape(up)}</text>')
    if across:
        body.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - _BOTTOM + 32, across, "middle"))
    return body


def _legend(names: Sequence[str]) -> list[str]:
    body, x = [], float(_LEFT)
    for number, name in enumerate(names):
        body.append(
            f'<rect x="{x:.1f}" y="{_HEIGHT - 17}" width="10" height="10" fill="{_COLOURS[number % len(_COLOURS)]}"/>'
        )
        body.append(_text(x + 14, _HEIGHT - 8, name, "start", 10))
        x += 26 + 5.6 * len(name)
    return body


def _text(x: float, y: float, text: str, anchor: str, size: int = 11) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _document(title: str, body: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="sans-serif" font-size="11" role="img">'
    )
    back = f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", back, _text(_LEFT, 20, title, "start", 13), *body]) + (
        "\n</svg>\n"
    )
