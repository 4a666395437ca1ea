"""Numbers and states for people, and series of numbers as small charts of characters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from arborcast.core.printable import as_html
from arborcast.engine.monitoring.ticks import Ahead, Unit, change_of, clock, linear, utc

# Display names of terms of the tables, logs and metrics: one term for each, everywhere. Columns, logs, metrics and
# JSON fields keep their own names; docs/glossary.md has the list.
WORDS: Mapping[str, str] = {
    # Outcomes of a delivery.
    "parked": "pending retry",
    "waiting": "pending",
    "dead": "failed",
    # Phases of a batch.
    "control": "reading changes of subscriptions",
    "view": "sharing these with the workers",
    "job": "matching and pushing",
    "feedback": "applying the workers' reports",
}

Points = Sequence[tuple[float, float | None]]

"""(seconds of the epoch, value); None if unknown."""

_WIDTH, _HEIGHT = 1_000, 100

_CLASSES = 8


def line_plot(
    title: str,
    series: Mapping[str, Points],
    unit: Unit,
    gap_s: float,
    span: tuple[float, float] | None = None,
    colours: Mapping[str, int] | None = None,
    ahead: Ahead = utc,
    limit: float | None = None,
) -> str:
    """A figure with one line for each of `series`, from 0 up. A line has a gap between points further apart than
    `gap_s`. `span` is the range of the time axis, by default that of the points. The last and the highest value of each
    line are also text. `colours` are colour numbers by series, by default their positions. `ahead` is the
    time zone of the axis. `limit` is a threshold, drawn if it is on the scale. A time without any point is
    marked as an outage. The drawing is stretched to the available width and contains only lines: labels beside it keep
    their size on a small screen."""
    times = [at for points in series.values() for at, _ in points]
    values = [value for points in series.values() for _, value in points if value is not None]
    if not times or not values:
        return (
            f'<figure class="chart"><figcaption>{as_html(title)}</figcaption><ul class="keys"><li>nothing was recorded'
            '</li></ul><div class="plot"></div></figure>'
        )
    colour = {name: (colours or {}).get(name, number) % _CLASSES for number, name in enumerate(series)}
    caption = f"<figcaption>{as_html(title)}</figcaption>{_legend(series, unit, colour)}"
    begin, end = span or (min(times), max(max(times), min(times) + 1))
    scale = linear(max(values), unit)
    top = scale[-1][0]

    def x(at: float) -> float:
        return (at - begin) / (end - begin) * _WIDTH

    def y(value: float) -> float:
        return _HEIGHT * (1 - value / top)

    drawing, labels = [], []
    for value, text in scale:
        drawing.append(f'<path class="grid" d="M0 {y(value):.2f}H{_WIDTH}"/>')
        labels.append(f'<span class="y" style="top:{y(value):.2f}%">{as_html(text)}</span>')
    for at, text in clock(begin, end, ahead=ahead):
        drawing.append(f'<path class="grid" d="M{x(at):.1f} 0V{_HEIGHT}"/>')
        labels.append(f'<span class="x" style="left:{x(at) / _WIDTH:.2%}">{as_html(text)}</span>')
    drawing += [
        f'<rect class="gap" x="{x(since):.1f}" width="{x(until) - x(since):.1f}" height="{_HEIGHT}"/>'
        for since, until in itertools.pairwise(sorted(set(times)))
        if gap_s and until - since > gap_s
    ]
    if limit is not None and limit <= top:
        drawing.append(f'<path class="limit" d="M0 {y(limit):.2f}H{_WIDTH}"/>')
    for name, points in series.items():
        for piece in _pieces(points, gap_s):
            # A line without length has round ends; a wide stroke makes it a dot.
            shown = piece if len(piece) > 1 else piece * 2
            dot = " dot" * (len(piece) == 1)
            drawn = " ".join(f"{x(at):.1f},{y(value):.2f}" for at, value in shown)
            drawing.append(f'<polyline class="s{colour[name]}{dot}" data-name="{as_html(name)}" points="{drawn}"/>')
    picture = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{as_html(title)}">'
        f"{''.join(drawing)}</svg>"
    )
    before, after = ahead(begin), ahead(end)
    facts = (
        f'data-begin="{begin:.3f}" data-end="{end:.3f}" data-offset="{before:g}" data-top="{top:g}" data-unit="{unit}"'
    )
    if before != after:
        facts += f' data-change="{change_of(begin, end, ahead)}" data-later="{after:g}"'
    return f'<figure class="chart">{caption}<div class="plot" {facts}>{picture}{"".join(labels)}</div></figure>'


def _legend(series: Mapping[str, Points], unit: Unit, colour: Mapping[str, int]) -> str:
    """The colour, name and values of each line."""
    lines = []
    for name, points in series.items():
        known = [value for _, value in points if value is not None]
        values = f"{WRITTEN[unit](known[-1])}, max {WRITTEN[unit](max(known))}" if known else "not known"
        key = f'<svg viewBox="0 0 24 6" aria-hidden="true"><path class="s{colour[name]}" d="M1 3H23"/></svg>'
        lines.append(f"<li>{key}{as_html(f'{name} {values}'.strip())}</li>")
    return f'<ul class="keys">{"".join(lines)}</ul>'


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
    return pieces


_BARS = "▁▂▃▄▅▆▇█"

_PLAIN = str.maketrans(_BARS + "…", "_.,-=+*#~")


def sparkline(values: Sequence[float | None], width: int, top: float = 0.0) -> str:
    """A chart of one line, the newest value on the right; missing values are blank. Its range is 0 to the largest
    value, or to `top` if that is larger."""
    shown = list(values[-width:]) if width > 0 else []
    most = max((value for value in shown if value is not None), default=0.0)
    most = max(most, top)
    bars = "".join(" " if value is None else _bar(value / most if most > 0 else 0.0) for value in shown)
    return bars.rjust(width)


def _bar(share: float) -> str:
    return _BARS[min(len(_BARS) - 1, max(0, int(share * len(_BARS))))]


def plain(text: str) -> str:
    """The text with charts in ASCII, for terminals without block characters."""
    return text.translate(_PLAIN)


def count(value: float | None) -> str:
    """Up to seven characters: 0, 0.3, 12, 1,234, 12.3 k, 4.5 M."""
    if value is None:
        return "-"
    if value >= 999_950:
        return f"{value / 1e6:,.1f} M"
    if value >= 9_999.5:
        return f"{value / 1e3:.1f} k"
    return f"{value:.1f}" if 0 < value < 9.95 and value != int(value) else f"{value:,.0f}"


def many(number: float, one: str, several: str = "") -> str:
    """A number with its noun: 1 delivery, 1,234 deliveries."""
    return f"{number:,.0f} {one if number == 1 else several or one + 's'}"


def seconds(value: float | None) -> str:
    """Up to eight characters, with a suitable unit."""
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
    """A share, of one core or of a whole."""
    return "-" if share is None else f"{share * 100:.0f} %"


def endpoint_row(one: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    """Address, pushes, failed ones, mean and longest time of an endpoint."""
    times = seconds(one["mean_s"]), seconds(one["longest"])
    return str(one["endpoint"]), count(one["pushes"]), count(one["failed"]), *times


WRITTEN: Mapping[Unit, Callable[[float | None], str]] = {
    "count": count,
    "rate": count,
    "seconds": seconds,
    "bytes": size,
    "share": percent,
}
"""The format of a value, by its unit."""


def shortened(text: str, width: int) -> str:
    """The text cut to a maximum length in the middle, because addresses differ at both ends."""
    if len(text) <= width:
        return text
    left = (width - 1) // 2
    return text[:left] + "…" + text[len(text) - (width - 1 - left) :]


def printable(text: str) -> str:
    """The text without control characters: endpoint addresses come from untrusted clients."""
    return "".join(character if character.isprintable() else "?" for character in text)
