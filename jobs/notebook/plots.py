"""`tables.plot`: one call for each picture."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import urlsplit

import pyarrow.dataset as ds

from jobs.monitoring import ticks
from jobs.monitoring.figures import seconds
from jobs.notebook.picture import (
    BLUE,
    CLASSES,
    GREY,
    ORANGE,
    SKY,
    STATES,
    VERMILION,
    WORDS,
    NothingToShow,
    Picture,
    canvas,
    or_words,
    put_columns,
    put_legend,
    put_rows,
    put_ticks,
)
from jobs.notebook.reader import NoSuchTable, When, as_time
from jobs.notebook.topic_tree import tree
from topic_model.topics import TopicPath

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from jobs.notebook.questions import Tables

By = Literal["endpoint", "host", "subscription", "topic"]

ENOUGH = 10

_ROWS = 15

_NO_PUSHES = (
    "nothing was pushed in this time: publish something (arborcast up --demo), or look further back with since="
)

_QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)

_POINTS = 180

_MARKED = 60

_BINS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 21_600, 86_400)


@dataclass(frozen=True)
class Grouping:
    """Which groups get a row, and what is summed up: those that have enough but no room, and those with too few."""

    shown: Sequence[str]
    others: Sequence[str]
    few: Sequence[str]


def grouped(counts: Mapping[str, int], rank: Mapping[str, float], most: int = _ROWS, enough: int = ENOUGH) -> Grouping:
    """The groups of the highest rank among those with enough in them. Where none has, all are shown."""
    able = [name for name, count in counts.items() if count >= enough] or list(counts)
    order = sorted(able, key=lambda name: (-rank[name], name))
    return Grouping(order[:most], order[most:], sorted(counts.keys() - set(able)))


def bin_seconds(span_s: float, points: int = _POINTS) -> int:
    """How wide the bins of a line are: round, and at most so many."""
    return next((width for width in _BINS if span_s / width <= points), _BINS[-1])


class Plots:
    """Pictures of an engine. `since` None: the last hour that the tables have."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    @or_words("How long receivers take to answer")
    def latency(self, by: By = "endpoint", since: When | None = None) -> Picture:
        """How long pushes took, the slowest first; what has fewer than ten pushes is summed up."""
        if by not in get_args(By):
            raise ValueError(f"by={by!r}: one of {', '.join(get_args(By))}")
        column = "endpoint" if by == "host" else by
        frame = self._pushes([column, "duration_ms"], since)
        groups = frame[column].map(lambda url: urlsplit(url).netloc) if by == "host" else frame[column]
        rows, quiet = _spread(frame.duration_ms, groups, by)
        return _ranges(f"How long receivers take to answer, by {by}", rows, quiet, "pushes")

    @or_words("How many arrive within how long")
    def arrivals(self, since: When | None = None) -> Picture:
        """From acceptance to the receiver's answer: which share has arrived after how long, with waiting, batches and
        all attempts."""
        import pandas as pd

        frame = self._tables.deliveries.pandas(
            ["latency_ms"], since=self._since(since), where=ds.field("state") == "delivered"
        )
        if frame.empty:
            raise NothingToShow(_NO_PUSHES.replace("pushed", "delivered"))
        values = frame.latency_ms.clip(lower=0.1).sort_values().to_numpy()
        shares = [(number + 1) / len(values) for number in range(len(values))]
        table = frame.latency_ms.quantile([0.5, 0.9, 0.99, 1]).rename("ms").rename_axis("share").round(1).to_frame()
        with canvas(f"How many of {len(values):,} deliveries arrive within how long", 3.0) as (figure, (axes,)):
            axes.set_xscale("log")
            axes.step([values[0], *values], [0, *shares], where="post", color=BLUE, linewidth=2)
            scale = ticks.logarithmic(float(values[0]), float(values[-1]))
            put_ticks(axes, scale)
            put_ticks(axes, [(share / 4, f"{share * 25} %") for share in range(5)], "y")
            axes.set(xlim=(scale[0][0], scale[-1][0]), ylim=(0, 1.02), xlabel="from acceptance to the answer")
            for share in (0.5, 0.99):
                at = float(frame.latency_ms.clip(lower=0.1).quantile(share))
                axes.plot(at, share, "o", color=VERMILION, markersize=6)
                # Right of the curve and below it there is nothing.
                axes.annotate(
                    f"{share * 100:.0f} % within {seconds(at / 1000)}",
                    (at, share),
                    (9, -5),
                    textcoords="offset points",
                    ha="left",
                    va="top",
                )
        return Picture("How many arrive within how long", pd.DataFrame(table), figure)

    @or_words("What goes wrong")
    def failures(self, by: By = "endpoint", since: When | None = None) -> Picture:
        """Failed pushes by class of the failure, those with the most first."""
        column = "endpoint" if by == "host" else by
        frame = self._pushes([column, "state", "error"], since)
        failed = frame[frame.state != "delivered"]
        if failed.empty:
            raise NothingToShow(f"none of {len(frame):,} pushes failed in this time")
        groups = failed[column].map(lambda url: urlsplit(url).netloc) if by == "host" else failed[column]
        counts = failed.groupby([groups, "error"]).size().unstack(fill_value=0)
        title = f"{len(failed):,} of {len(frame):,} pushes failed, by {by} and class of the failure"
        return _stacked(title, counts, "failed pushes", by)

    @or_words("How deliveries ended")
    def outcomes(self, by: By = "endpoint", since: When | None = None) -> Picture:
        """Deliveries that are over, by how they ended; those with the most first."""
        column = "endpoint" if by == "host" else by
        frame = self._tables.deliveries.pandas([column, "state"], since=self._since(since))
        if frame.empty:
            raise NothingToShow(
                "no delivery has ended in this time: publish something (arborcast up --demo), or look further back "
                "with since="
            )
        groups = frame[column].map(lambda url: urlsplit(url).netloc) if by == "host" else frame[column]
        counts = frame.groupby([groups, "state"]).size().unstack(fill_value=0)
        counts = counts[[state for state in STATES if state in counts]]
        title = f"How {len(frame):,} deliveries ended, by {by}"
        return _stacked(title, counts, "deliveries", by, STATES)

    @or_words("Endpoints that did not answer")
    def breakers(self, since: When | None = None) -> Picture:
        """Who was left alone, and who served apart from the others, and when."""
        begin = self._since(since)
        changes = self._tables.endpoint_health.pandas(["endpoint", "at", "breaker", "sick"]).sort_values("at")
        if changes.empty:
            raise NothingToShow("every endpoint has answered since this engine is there: no breaker has opened")
        newest = max(self._tables.newest() or begin, changes["at"].max().to_pydatetime())
        return _breakers(changes, begin, newest)

    @or_words("Accepted and delivered")
    def throughput(self, since: When | None = None) -> Picture:
        """Notifications accepted and deliveries made, a second."""
        import pandas as pd

        begin = self._since(since)
        accepted = self._tables.notifications.pandas(["accepted_at"], since=begin).accepted_at
        ended = self._tables.deliveries.pandas(
            ["ended_at"], since=begin, where=ds.field("state") == "delivered"
        ).ended_at
        if accepted.empty and ended.empty:
            raise NothingToShow(_NO_PUSHES.replace("pushed", "accepted"))
        both = pd.concat([accepted, ended])
        width = bin_seconds((both.max() - both.min()).total_seconds())
        lines = {
            # In nanoseconds: pandas 2.3 gets the union of two such indexes wrong in any other unit.
            name: pd.Series(1, index=pd.DatetimeIndex(times).as_unit("ns")).resample(f"{width}s").sum() / width
            for name, times in (("accepted", accepted), ("delivered", ended))
        }
        table = pd.DataFrame(lines).fillna(0.0)
        title = f"Notifications accepted and deliveries made, a second (average of {width} s)"
        return _lines(title, table, "rate")

    @or_words("Lag")
    def lag(self, since: When | None = None) -> Picture:
        """How old the oldest notification was whose first push began: a line that rises means that the engine does not
        keep up. Without what waits behind an endpoint that does not answer."""
        frame = self._pushes(["number", "batch", "accepted_at", "started_at"], since)
        first = frame[(frame.number == 1) & (frame.batch >= 0)]
        if first.empty:
            raise NothingToShow(_NO_PUSHES)
        width = bin_seconds((first.started_at.max() - first.started_at.min()).total_seconds())
        ages = (first.started_at - first.accepted_at).dt.total_seconds().set_axis(first.started_at)
        table = ages.resample(f"{width}s").max().rename("oldest, s").to_frame()
        return _lines(
            f"How old notifications were when their first push began, the oldest of {width} s", table, "seconds"
        )

    @or_words("Where the time goes")
    def stages(self, since: When | None = None) -> Picture:
        """Of deliveries at the first attempt: until it was stored, until its push began, and until the answer."""
        import pandas as pd

        begin = self._since(since)
        stored = self._tables.notifications.pandas(["notification", "accepted_at", "logged_at"], since=begin)
        frame = self._tables.attempts.pandas(
            ["notification", "number", "state", "started_at", "duration_ms"],
            since=begin,
            where=(ds.field("state") == "delivered") & (ds.field("number") == 1),
        ).merge(stored, on="notification")
        if frame.empty:
            raise NothingToShow(_NO_PUSHES)
        spans = {
            "until Kafka has it": (frame.logged_at - frame.accepted_at).dt.total_seconds() * 1000,
            "until its push begins": (frame.started_at - frame.logged_at).dt.total_seconds() * 1000,
            "until the answer": frame.duration_ms,
            "all together": (frame.started_at - frame.accepted_at).dt.total_seconds() * 1000 + frame.duration_ms,
        }
        rows = pd.DataFrame({name: _row(values.clip(lower=0)) for name, values in spans.items()}).T
        return _ranges(
            "Where the time of a delivery goes, at the first attempt", rows, [False] * len(rows), "deliveries"
        )

    @or_words("How long batches take")
    def batches(self, since: When | None = None) -> Picture:
        """From the first push of a batch to the end of its last, by how much it carried. A batch without pushes leaves
        no attempts."""
        import pandas as pd

        frame = self._tables.attempts.pandas(
            ["batch", "push", "notification", "started_at", "duration_ms"],
            since=self._since(since),
            where=(ds.field("push") != "") & (ds.field("batch") >= 0),
        )
        if frame.empty:
            raise NothingToShow(_NO_PUSHES)
        frame["ended_at"] = frame.started_at + pd.to_timedelta(frame.duration_ms, unit="ms")
        table = frame.groupby("batch").agg(
            began=("started_at", "min"),
            ended=("ended_at", "max"),
            deliveries=("notification", "count"),
            pushes=("push", "nunique"),
        )
        table["duration_ms"] = (table.ended - table.began).dt.total_seconds() * 1000
        with canvas(f"How long {len(table):,} batches take, by what they carry", 3.4) as (figure, (axes,)):
            took = table.duration_ms.clip(lower=0.1)
            axes.scatter(table.deliveries, took, s=22, color=BLUE, alpha=0.45, linewidths=0)
            axes.set(
                xscale="log", yscale="log", xlabel="deliveries in the batch", ylabel="from first push to last answer"
            )
            scale = ticks.logarithmic(float(took.min()), float(took.max()))
            put_ticks(axes, scale, "y")
            axes.set_ylim(scale[0][0], scale[-1][0] * 1.1)
            most = int(table.deliveries.max())
            put_ticks(axes, _counts(most))
            axes.set_xlim(0.8, most * 1.3)
        return Picture("How long batches take", table, figure)

    @or_words("The topic tree")
    def tree(self, root: str = "", since: When | None = None) -> Picture:
        """The topics, or those at and below `root`: the busiest branches of that time, with how many subscriptions
        they go to; what has no room is summed up."""
        topics = self._tables.topics.pandas(["topic"]).topic
        wanted: dict[TopicPath, frozenset[str]] = dict.fromkeys(map(TopicPath, topics), frozenset())
        published: dict[TopicPath, int] = {}
        # Neither of these tables need be there: tables.archive, tables.max_routes.
        with contextlib.suppress(NoSuchTable):
            fan_out = self._tables.routes.pandas(["topic", "subscription"]).groupby("topic").subscription.agg(frozenset)
            wanted |= {TopicPath(topic): them for topic, them in fan_out.items() if topic in wanted}
        with contextlib.suppress(NoSuchTable):
            rows = self._tables.notifications.pandas(["topic"], since=self._since(since))
            published = {TopicPath(topic): int(count) for topic, count in rows.topic.value_counts().items()}
        return tree(published, wanted, root)

    @or_words("Who gets what")
    def who_gets_what(self, by: Literal["topic", "subscription", "endpoint"] = "topic") -> Picture:
        """By topic: how many subscriptions it goes to. By subscription or endpoint: how many topics it gets. Those with
        the most first."""
        routes = self._tables.routes.pandas(["topic", "subscription", "endpoint"])
        if routes.empty:
            raise NothingToShow(
                "nobody gets anything: subscribe (arborcast listen TOPIC, or arborcast up --demo); a subscription to "
                "topics that are not there yet has no routes either"
            )
        counted, unit = ("subscription", "subscriptions") if by == "topic" else ("topic", "topics")
        counts = routes.groupby(by)[counted].nunique().sort_values(ascending=False, kind="stable")
        title = f"Who gets what: {unit} of each {by}"
        return _ranked(title, counts.rename(unit), by)

    def _since(self, since: When | None) -> datetime:
        return self._tables.lately() if since is None else as_time(since)

    def _pushes(self, columns: Sequence[str], since: When | None) -> Any:
        """One row for each HTTP request. Raises NothingToShow when there were none."""
        wanted = dict.fromkeys(["push", *columns])
        frame = self._tables.attempts.pandas([*wanted], since=self._since(since), where=ds.field("push") != "")
        if frame.empty:
            raise NothingToShow(_NO_PUSHES)
        return frame.drop_duplicates("push")


def _row(values: Any) -> dict[str, float]:
    quantiles = values.quantile(list(_QUANTILES))
    return {"count": len(values), **dict(zip(("p1", "p25", "p50", "p75", "p99"), quantiles, strict=True))}


def _spread(values: Any, groups: Any, by: str) -> tuple[Any, list[bool]]:
    """Quantiles of each group that is shown, and of those that are summed up."""
    import pandas as pd

    split = values.groupby(groups)
    choice = grouped(split.size().to_dict(), split.quantile(0.99).to_dict())
    rows = {name: _row(split.get_group(name)) for name in choice.shown}
    for names, what in ((choice.others, "other"), (choice.few, "with fewer than ten")):
        if names:
            name = f"{len(names):,} {what} {by}s" if what == "other" else f"{len(names):,} {by}s {what}"
            rows[name] = _row(values[groups.isin(names)])
    quiet = [number >= len(choice.shown) for number in range(len(rows))]
    return pd.DataFrame(rows).T, quiet


def _ranges(title: str, rows: Any, quiet: Sequence[bool], counted: str) -> Picture:
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
        axes.set_xlabel("dot: the median; thick: half of them; thin: 98 % of them", fontsize=8, color="#666666")
    return Picture(title, rows.round(1).astype({"count": int}), figure)


def _stacked(title: str, counts: Any, unit: str, by: str, colours: Mapping[str, str] | None = None) -> Picture:
    """A bar for each row with the most, its columns one after another; the rest as numbers."""
    counts = counts.loc[counts.sum(axis=1).sort_values(ascending=False, kind="stable").index]
    order = list(counts.columns) if colours else list(counts.sum().sort_values(ascending=False).index)
    table = counts[order]
    if colours is None:
        kept = order[: len(CLASSES) - 1] if len(order) > len(CLASSES) else order
        colours = dict(zip(kept, CLASSES, strict=False))
        if len(kept) < len(order):
            colours["others"] = GREY
            table = table[kept].assign(others=table[order[len(kept) :]].sum(axis=1))
    shown, rest = table.head(_ROWS), table.iloc[_ROWS:]
    sums = shown.sum(axis=1)
    with canvas(title, 1.6 + 0.27 * (len(shown) + (len(rest) > 0))) as (figure, (axes,)):
        left = [0.0] * len(shown)
        for column in table.columns:
            axes.barh(range(len(shown)), shown[column], left=left, height=0.7, color=colours[column], linewidth=0)
            left = [before + value for before, value in zip(left, shown[column], strict=True)]
        names = [name or "(none)" for name in shown.index]
        _finish_bars(axes, names, list(sums), len(rest), float(rest.to_numpy().sum()), unit, by)
        put_legend(axes, [(WORDS.get(name, name or "none"), colours[name]) for name in table.columns])
    return Picture(title, counts, figure)


def _ranked(title: str, counts: Any, by: str) -> Picture:
    """The same with bars of one colour."""
    shown, rest = counts.head(_ROWS), counts.iloc[_ROWS:]
    with canvas(title, 1.3 + 0.27 * (len(shown) + (len(rest) > 0))) as (figure, (axes,)):
        axes.barh(range(len(shown)), shown, height=0.7, color=BLUE, linewidth=0)
        _finish_bars(axes, list(shown.index), list(shown), len(rest), float(rest.sum()), str(counts.name), by)
    return Picture(title, counts.to_frame(), figure)


def _finish_bars(
    axes: Axes, names: Sequence[str], sums: Sequence[float], others: int, rest: float, unit: str, by: str
) -> None:
    """Names, numbers at the ends of bars, and a last row for what has no bar: a sum of many would dwarf the others."""
    rows = [*names, *([f"{others:,} other {by}s"] if others else [])]
    put_rows(axes, rows, quiet=[number >= len(names) for number in range(len(rows))])
    most = max([1.0, *sums])
    scale = ticks.linear(most)
    put_ticks(axes, scale)
    axes.set_xlim(0, max(scale[-1][0], most * 1.1))
    axes.set_xlabel(unit)
    for number, value in enumerate(sums):
        axes.text(value + most * 0.01, number, f"{value:,.0f}", va="center", fontsize=8)
    if others:
        text = f"{rest:,.0f} together, {rest / others:,.1f} each"
        axes.text(most * 0.01, len(names), text, va="center", fontsize=8, style="italic", color="#666666")


def _lines(title: str, table: Any, unit: ticks.Unit) -> Picture:
    """Columns over time, from 0 up."""
    times = [at.timestamp() for at in table.index]
    with canvas(title, 3.0) as (figure, (axes,)):
        # Blue solid and orange dashed: apart in grey, too.
        for column, colour, style in zip(table.columns, (BLUE, ORANGE), ("-", "--"), strict=False):
            marker = "." if len(table) <= _MARKED else ""
            axes.plot(times, table[column], color=colour, linestyle=style, marker=marker, markersize=7, label=column)
        begin, end = times[0], max(times[-1], times[0] + 1)
        put_ticks(axes, ticks.clock(begin, end, 8))
        scale = ticks.linear(float(table.max().max()), unit)
        put_ticks(axes, scale, "y")
        room = (end - begin) * 0.01
        axes.set(xlim=(begin - room, end + room), ylim=(0, scale[-1][0] * 1.03))
        axes.set_xlabel(f"time (UTC), {datetime.fromtimestamp(begin, UTC):%Y-%m-%d}", fontsize=8, color="#666666")
        if len(table.columns) > 1:
            axes.figure.legend(loc="outside lower center", ncols=len(table.columns))
    return Picture(title, table, figure)


def _breakers(changes: Any, begin: datetime, newest: datetime) -> Picture:
    # A state lasts until the next one, the last until the tables end.
    spans = changes.assign(until=changes.groupby("endpoint")["at"].shift(-1).fillna(newest))
    spans = spans[(spans.sick | (spans.breaker == "open")) & (spans.until > begin)]
    if spans.empty:
        raise NothingToShow("every endpoint was well in this time; look further back with since=")
    spans = spans.assign(
        since=spans["at"].clip(lower=begin),
        kind=(spans.breaker == "open").map({True: "left alone", False: "served apart"}),
    )
    spans["minutes"] = (spans.until - spans.since).dt.total_seconds() / 60
    first = spans.since.min().to_pydatetime()
    begin = max(begin, first - (newest - first) * 0.05)
    table = spans.groupby(["endpoint", "kind"]).minutes.sum().unstack(fill_value=0.0)
    table = table.reindex(columns=["left alone", "served apart"], fill_value=0.0).rename_axis(columns=None)
    table = table.loc[table.sum(axis=1).sort_values(ascending=False, kind="stable").index]
    shown, rest = list(table.index[:_ROWS]), len(table) - _ROWS
    title = f"{len(table):,} endpoints that did not answer as they should"
    with canvas(title, 1.6 + 0.27 * (len(shown) + (rest > 0))) as (figure, (axes,)):
        rows = [*shown, *([f"{rest:,} other endpoints"] if rest > 0 else [])]
        put_rows(axes, rows, quiet=[number >= len(shown) for number in range(len(rows))])
        number_of = {name: number for number, name in enumerate(shown)}
        colours = {"left alone": VERMILION, "served apart": SKY}
        # A blink shall be seen, too.
        least = (newest - begin).total_seconds() / 400
        for span in spans[spans.endpoint.isin(shown)].itertuples():
            at = span.since.timestamp()
            width = max(least, span.until.timestamp() - at)
            axes.barh(number_of[span.endpoint], width, left=at, height=0.6, color=colours[span.kind], linewidth=0)
        if rest > 0:
            others = table.iloc[_ROWS:]
            apart, alone = others["served apart"].mean(), others["left alone"].mean()
            text = f"left alone {alone:.1f} min each, served apart {apart:.1f} min"
            axes.text(
                begin.timestamp() + 2 * least,
                len(shown),
                text,
                va="center",
                fontsize=8,
                style="italic",
                color="#666666",
            )
        put_ticks(axes, ticks.clock(begin.timestamp(), newest.timestamp(), 8))
        axes.set_xlim(begin.timestamp(), newest.timestamp())
        axes.set_xlabel(f"time (UTC), {begin:%Y-%m-%d}", fontsize=8, color="#666666")
        cells = [[seconds(60 * minutes) for minutes in row] for row in table.head(_ROWS).to_numpy()]
        put_columns(axes, ["alone", "apart"], cells)
        put_legend(axes, list(colours.items()))
    return Picture(title, table.round(2), figure)


def _counts(most: int) -> ticks.Ticks:
    found = [(10.0**power, f"{10**power:,}") for power in range(12) if 10**power <= most]
    return found if len(found) > 1 else [(float(number), str(number)) for number in (1, 2, 5, 10)]
