"""The forms of charts: ranges, bars, lines, periods; and the selection of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pandas as pd

from arborcast.analysis.picture import (
    ASIDE,
    BLUE,
    CLASSES,
    GREY,
    ORANGE,
    SKY,
    VERMILION,
    NothingToShow,
    Picture,
    canvas,
    put_columns,
    put_legend,
    put_rows,
    put_ticks,
)
from arborcast.engine.monitoring import ticks
from arborcast.engine.monitoring.figures import WORDS, many, seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# With fewer values a quantile has no meaning.
ENOUGH = 10

# Maximum number of readable rows; the others share one.
_ROWS = 15

_QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)

# Maximum number of points of a line.
_POINTS = 180

# Up to this number of points each is marked, so that single ones are visible, too.
_MARKED = 60

# Widths of a bin of time, in seconds.
_BINS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 21_600, 86_400)


def grouped(
    counts: Mapping[str, int], rank: Mapping[str, float], most: int = _ROWS
) -> tuple[list[str], list[str], list[str]]:
    """The groups with a row of their own: those of the highest rank among those with enough values, or among all if no
    group has enough. And the groups that are summed up: those beyond the space, and those with too few values."""
    enough_values = [name for name, count in counts.items() if count >= ENOUGH] or list(counts)
    order = sorted(enough_values, key=lambda name: (-rank[name], name))
    return order[:most], order[most:], sorted(counts.keys() - set(enough_values))


def bin_seconds(span_s: float) -> int:
    """The round width of a line's bins, for at most `_POINTS` of them."""
    return next((width for width in _BINS if span_s / width <= _POINTS), _BINS[-1])


def quantiles(values: Any) -> dict[str, float]:
    quantiles = values.quantile(list(_QUANTILES))
    return {"count": len(values), **dict(zip(("p1", "p25", "p50", "p75", "p99"), quantiles, strict=True))}


def spread(values: Any, groups: Any, by: str) -> tuple[Any, list[bool]]:
    """Quantiles of each group with a row, and of the summed groups."""
    split = values.groupby(groups)
    shown, others, few = grouped(split.size().to_dict(), split.quantile(0.99).to_dict())
    rows = {name: quantiles(split.get_group(name)) for name in shown}
    for names, what in ((others, "other"), (few, "with fewer than ten")):
        if names:
            name = f"{len(names):,} {what} {by}s" if what == "other" else f"{len(names):,} {by}s {what}"
            rows[name] = quantiles(values[groups.isin(names)])
    quiet = [number >= len(shown) for number in range(len(rows))]
    return pd.DataFrame(rows).T, quiet


def ranges(title: str, rows: Any, quiet: Sequence[bool], counted: str) -> Picture:
    """A line from the first percentile to the last, thick for the half in the middle, and a dot for the median."""
    with canvas(title, 1.5 + 0.27 * len(rows)) as (figure, (axes,)):
        drawn = rows.clip(lower=0.1)
        axes.set_xscale("log")
        scale = ticks.logarithmic(float(drawn.p1.min()), float(drawn.p99.max()))
        put_ticks(axes, scale)
        axes.set_xlim(scale[0][0], scale[-1][0])
        put_rows(axes, list(rows.index), quiet=quiet)
        for number, (row, is_quiet) in enumerate(zip(drawn.itertuples(), quiet, strict=True)):
            colour = GREY if is_quiet else BLUE
            axes.plot([row.p1, row.p99], [number, number], color=colour, linewidth=1.2, solid_capstyle="butt")
            axes.plot([row.p25, row.p75], [number, number], color=colour, linewidth=6, solid_capstyle="butt", alpha=0.6)
            axes.plot(row.p50, number, "o", color=colour, markersize=6, markeredgecolor="white")
        cells = [
            [seconds(row.p50 / 1000), seconds(row.p99 / 1000), f"{int(row.count_):,}"]
            for row in rows.rename(columns={"count": "count_"}).itertuples()
        ]
        put_columns(axes, ["median", "99 %", counted], cells)
        axes.set_xlabel("dot: the median; thick: half of them; thin: 98 % of them", **ASIDE)
    return Picture(title, rows.round(1).astype({"count": int}), figure)


def stacked(title: str, counts: Any, unit: str, by: str, colours: Mapping[str, str] | None = None) -> Picture:
    """A bar for each of the largest rows, with its columns one after another, and its sum; the others as numbers."""
    counts = counts.loc[counts.sum(axis=1).sort_values(ascending=False, kind="stable").index]
    order = list(counts.columns) if colours else list(counts.sum().sort_values(ascending=False).index)
    table = counts[order]
    if colours is None:
        largest = order[: len(CLASSES) - 1] if len(order) > len(CLASSES) else order
        colours = dict(zip(largest, CLASSES, strict=False))
        if len(largest) < len(order):
            colours["others"] = GREY
            table = table[largest].assign(others=table[order[len(largest) :]].sum(axis=1))
    shown, rest = table.head(_ROWS), table.iloc[_ROWS:]
    others, is_plain = len(rest), list(table.columns) == [unit]
    with canvas(title, (1.3 if is_plain else 1.6) + 0.27 * (len(shown) + (others > 0))) as (figure, (axes,)):
        ends = [0.0] * len(shown)
        for column in table.columns:
            axes.barh(range(len(shown)), shown[column], left=ends, height=0.7, color=colours[column], linewidth=0)
            ends = [before + value for before, value in zip(ends, shown[column], strict=True)]
        # The bar of a sum would dwarf the others.
        total = float(rest.to_numpy().sum())
        text = f"{total:,.0f} together, {total / others:,.1f} each" if others else ""
        _put_rows_and_others(axes, [name or "(none)" for name in shown.index], others, by, text)
        most = max([1.0, *ends])
        scale = ticks.linear(most)
        put_ticks(axes, scale)
        axes.set_xlim(0, max(scale[-1][0], most * 1.1))
        axes.set_xlabel(unit)
        for number, value in enumerate(ends):
            axes.text(value + most * 0.01, number, f"{value:,.0f}", va="center", fontsize=8)
        if not is_plain:
            put_legend(axes, [(WORDS.get(name, name or "none"), colours[name]) for name in table.columns])
    return Picture(title, counts, figure)


def _put_rows_and_others(axes: Axes, names: Sequence[str], others: int, by: str, text: str) -> None:
    """A row for each name and, if there are others, one for all of them, with a text instead of a bar."""
    put_rows(axes, [*names, *([f"{others:,} other {by}s"] if others else [])], quiet=[False] * len(names) + [True])
    if others:
        transform = axes.get_yaxis_transform()
        axes.text(0.01, len(names), text, transform=transform, va="center", style="italic", **ASIDE)


def _put_time(axes: Axes, begin: float, end: float, room: float = 0.0) -> None:
    put_ticks(axes, ticks.clock(begin, end, 8))
    axes.set_xlim(begin - room, end + room)
    axes.set_xlabel(f"time (UTC), {datetime.fromtimestamp(begin, UTC):%Y-%m-%d}", **ASIDE)


def lines(title: str, table: Any, unit: ticks.Unit) -> Picture:
    """Columns over time, from 0 up."""
    times = [at.timestamp() for at in table.index]
    with canvas(title, 3.0) as (figure, (axes,)):
        # Blue solid and orange dashed: distinguishable in grey, too.
        for column, colour, style in zip(table.columns, (BLUE, ORANGE), ("-", "--"), strict=False):
            values = table[column].to_list()
            every = range(len(values))
            marked = [number for number in every if len(values) <= _MARKED or is_alone(values, number)]
            axes.plot(
                times,
                values,
                color=colour,
                linestyle=style,
                marker="." if marked else "",
                markersize=8,
                markevery=marked,
                label=column,
            )
        begin, end = times[0], max(times[-1], times[0] + 1)
        _put_time(axes, begin, end, room=(end - begin) * 0.01)
        scale = ticks.linear(float(table.max().max()), unit)
        put_ticks(axes, scale, "y")
        axes.set_ylim(0, scale[-1][0] * 1.03)
        if len(table.columns) > 1:
            axes.figure.legend(loc="outside lower center", ncols=len(table.columns))
    return Picture(title, table, figure)


def failing_endpoints(changes: Any, begin: datetime, newest: datetime) -> Picture:
    # A state lasts until the next one, the last until the end of the tables.
    spans = changes.assign(until=changes.groupby("endpoint")["at"].shift(-1).fillna(newest))
    spans = spans[(spans.sick | (spans.breaker == "open")) & (spans.until > begin)]
    if spans.empty:
        raise NothingToShow("no endpoint has failed in this period; pass an earlier since=")
    spans = spans.assign(
        since=spans["at"].clip(lower=begin),
        kind=(spans.breaker == "open").map({True: "open", False: "redelivery"}),
    )
    spans["minutes"] = (spans.until - spans.since).dt.total_seconds() / 60
    first = spans.since.min().to_pydatetime()
    begin = max(begin, first - (newest - first) * 0.05)
    table = spans.groupby(["endpoint", "kind"]).minutes.sum().unstack(fill_value=0.0)
    table = table.reindex(columns=["open", "redelivery"], fill_value=0.0).rename_axis(columns=None)
    table = table.loc[table.sum(axis=1).sort_values(ascending=False, kind="stable").index]
    shown = list(table.index[:_ROWS])
    title = f"{many(len(table), 'endpoint')} with failures"
    with canvas(title, 1.6 + 0.27 * min(len(table), _ROWS + 1)) as (figure, (axes,)):
        others = table.iloc[_ROWS:].mean()
        text = f"open {others['open']:.1f} min each, redelivery {others['redelivery']:.1f} min"
        _put_rows_and_others(axes, shown, len(table) - len(shown), "endpoint", text)
        number_of = {name: number for number, name in enumerate(shown)}
        colours = {"open": VERMILION, "redelivery": SKY}
        # A short period must be visible, too.
        least = (newest - begin).total_seconds() / 400
        for span in spans[spans.endpoint.isin(shown)].itertuples():
            at = span.since.timestamp()
            width = max(least, span.until.timestamp() - at)
            axes.barh(number_of[span.endpoint], width, left=at, height=0.6, color=colours[span.kind], linewidth=0)
        _put_time(axes, begin.timestamp(), newest.timestamp())
        cells = [[seconds(60 * minutes) for minutes in row] for row in table.head(_ROWS).to_numpy()]
        put_columns(axes, ["open", "redelivery"], cells)
        put_legend(axes, list(colours.items()))
    return Picture(title, table.round(2), figure)


def is_alone(values: Sequence[float], number: int) -> bool:
    """Whether a point has no neighbours, so that no line leads to it."""
    beside = [values[other] for other in (number - 1, number + 1) if 0 <= other < len(values)]
    return all(math.isnan(value) for value in beside)


def decades(most: int) -> ticks.Ticks:
    found = [(10.0**power, f"{10**power:,}") for power in range(12) if 10**power <= most]
    return found if len(found) > 1 else [(float(number), str(number)) for number in (1, 2, 5, 10)]
