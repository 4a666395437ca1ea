"""Numbers as people read them, and series of them as small charts made of characters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from core.printable import as_html

Points = Sequence[tuple[float, float | None]]

"""(seconds of the epoch, value); None where nothing is known."""

_WIDTH, _HEIGHT = 720, 220

_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 26

_CLASSES = 8


def line_plot(title: str, series: Mapping[str, Points], write: Callable[[float | None], str], gap_s: float) -> str:
    """A figure with one line for each of `series`, from 0 up. Lines break where two points are further apart than
    `gap_s`: nothing is known about what was between.
    """
    times = [at for points in series.values() for at, _ in points]
    values = [value for points in series.values() for _, value in points if value is not None]
    if not times or not values:
        return f"<figure><figcaption>{as_html(title)}</figcaption><p>nothing was recorded</p></figure>"
    begin, end = min(times), max(max(times), min(times) + 1)
    top = _nice(max(values))

    def x(at: float) -> float:
        return _LEFT + (at - begin) / (end - begin) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{as_html(title)}">']
    for step in range(5):
        value = top * step / 4
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        )
        parts.append(f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{as_html(write(value))}</text>')
    for step in range(5):
        at = begin + (end - begin) * step / 4
        anchor = {0: "start", 4: "end"}.get(step, "middle")
        parts.append(f'<text x="{x(at):.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{_clock(at, end - begin)}</text>')
    for number, points in enumerate(series.values()):
        for piece in _pieces(points, gap_s):
            drawn = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in piece)
            parts.append(f'<polyline class="s{number % _CLASSES}" points="{drawn}"/>')
    parts.append("</svg>")
    legend = "".join(
        f'<span class="key k{number % _CLASSES}">{as_html(name)}</span>' for number, name in enumerate(series)
    )
    return f"<figure><figcaption>{as_html(title)} {legend}</figcaption>{''.join(parts)}</figure>"


def _pieces(points: Points, gap_s: float) -> list[list[tuple[float, float]]]:
    pieces: list[list[tuple[float, float]]] = []
    last: float | None = None
    for at, value in points:
        if value is None:
            last = None
            continue
        if last is None or at - last > gap_s:
            pieces.append([])
        pieces[-1].append((at, value))
        last = at
    # A lone point would be invisible as a line of no length.
    return [piece if len(piece) > 1 else [piece[0], (piece[0][0], piece[0][1])] for piece in pieces]


def _nice(value: float) -> float:
    """The next of 1, 2, 4, 10, 20, 40 ...: a quarter of it is a figure that people can read."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 4, 10) if factor * power >= value)


def _clock(at: float, span: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime(
        "%d %b %H:%M" if span > 86_400 else "%H:%M:%S" if span < 900 else "%H:%M"
    )


_BARS = "▁▂▃▄▅▆▇█"

_PLAIN = str.maketrans(_BARS + "…", "_.,-=+*#~")


def sparkline(values: Sequence[float | None], width: int, top: float = 0.0) -> str:
    """A chart of one line, the newest value on the right; what is not known is left blank.

    It reaches from 0 to the largest value, or to `top` if that is larger.
    """
    shown = list(values[-width:]) if width > 0 else []
    most = max((value for value in shown if value is not None), default=0.0)
    most = max(most, top)
    bars = "".join(" " if value is None else _bar(value / most if most > 0 else 0.0) for value in shown)
    return bars.rjust(width)


def _bar(share: float) -> str:
    return _BARS[min(len(_BARS) - 1, max(0, int(share * len(_BARS))))]


def plain(text: str) -> str:
    """The charts in a text made of characters that every terminal has."""
    return text.translate(_PLAIN)


def count(value: float | None) -> str:
    """Seven characters at most: 0, 0.3, 12, 1,234, 12.3 k, 4.5 M."""
    if value is None:
        return "-"
    if value >= 999_950:
        return f"{value / 1e6:,.1f} M"
    if value >= 9_999.5:
        return f"{value / 1e3:.1f} k"
    return f"{value:.1f}" if 0 < value < 9.95 and value != int(value) else f"{value:,.0f}"


def seconds(value: float | None) -> str:
    """Eight characters at most, with the unit that suits."""
    if value is None:
        return "-"
    if value < 0.9995:
        milliseconds = value * 1_000
        return f"{milliseconds:.1f} ms" if milliseconds < 9.95 else f"{milliseconds:.0f} ms"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if value >= 2 * size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.1f} s"


def size(value: float | None) -> str:
    """Bytes, in binary units."""
    if value is None:
        return "-"
    if value >= 2**30:
        return f"{value / 2**30:.1f} GiB"
    if value >= 2**20:
        return f"{value / 2**20:.0f} MiB"
    return f"{value / 1024:.0f} KiB"


def percent(share: float | None) -> str:
    """Of one core, or of a whole."""
    return "-" if share is None else f"{share * 100:.0f} %"


def shortened(text: str, width: int) -> str:
    """At most so many characters; the middle goes, because addresses differ at both ends."""
    if len(text) <= width:
        return text
    left = (width - 1) // 2
    return text[:left] + "…" + text[len(text) - (width - 1 - left) :]


def printable(text: str) -> str:
    """Without what would move a terminal's cursor: endpoints are what strangers have written."""
    return "".join(character if character.isprintable() else "?" for character in text)
