"""`tables.plot`: one call per chart."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import urlsplit

import pandas as pd
import pyarrow.dataset as ds

from arborcast.analysis.charts import (
    bin_seconds,
    decades,
    failing_endpoints,
    lines,
    quantiles,
    ranges,
    spread,
    stacked,
)
from arborcast.analysis.picture import BLUE, STATES, VERMILION, NothingToShow, Picture, canvas, put_ticks, text_if_empty
from arborcast.analysis.reader import NoSuchTable, TimeOrAge
from arborcast.analysis.topic_tree import tree
from arborcast.engine.monitoring import ticks
from arborcast.engine.monitoring.figures import many, seconds
from arborcast.topic_model.topics import TopicPath

if TYPE_CHECKING:
    from arborcast.analysis.questions import Tables

By = Literal["endpoint", "host", "subscription", "topic"]

_NO_PUSHES = "there are no pushes in this period: publish something (arborcast up --demo), or pass an earlier since="


class Plots:
    """Charts of an engine. `since` None: the last hour of the tables."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    @text_if_empty("Response times")
    def latency(self, by: By = "endpoint", since: TimeOrAge | None = None) -> Picture:
        """Duration of pushes, the slowest first."""
        if by not in get_args(By):
            raise ValueError(f"by={by!r}: one of {', '.join(get_args(By))}")
        frame = self._pushes([_column(by), "duration_ms"], since)
        rows, quiet = spread(frame.duration_ms, _groups(frame, by), by)
        return ranges(f"Response times by {by}", rows, quiet, "pushes")

    @text_if_empty("Delays of deliveries")
    def arrivals(self, since: TimeOrAge | None = None) -> Picture:
        """Share of deliveries by their time from acceptance to the answer. With waiting, batches and all attempts."""
        frame = self._tables.deliveries.pandas(
            ["latency_ms"], since=self._tables.start_of(since), where=ds.field("state") == "delivered"
        )
        if frame.empty:
            raise NothingToShow(_NO_PUSHES.replace("pushes", "deliveries"))
        values = frame.latency_ms.clip(lower=0.1).sort_values().to_numpy()
        shares = [(number + 1) / len(values) for number in range(len(values))]
        table = frame.latency_ms.quantile([0.5, 0.9, 0.99, 1]).rename("ms").rename_axis("share").round(1).to_frame()
        with canvas(f"Delays of {many(len(values), 'delivery', 'deliveries')}", 3.0) as (figure, (axes,)):
            axes.set_xscale("log")
            axes.step([values[0], *values], [0, *shares], where="post", color=BLUE, linewidth=2)
            scale = ticks.logarithmic(float(values[0]), float(values[-1]))
            put_ticks(axes, scale)
            put_ticks(axes, [(share / 4, f"{share * 25} %") for share in range(5)], "y")
            axes.set(xlim=(scale[0][0], scale[-1][0]), ylim=(0, 1.02), xlabel="from acceptance to the answer")
            for share in (0.5, 0.99):
                at = float(frame.latency_ms.clip(lower=0.1).quantile(share))
                axes.plot(at, share, "o", color=VERMILION, markersize=6)
                # The area right of and below the curve is empty.
                axes.annotate(
                    f"{share * 100:.0f} % within {seconds(at / 1000)}",
                    (at, share),
                    (9, -5),
                    textcoords="offset points",
                    ha="left",
                    va="top",
                )
        return Picture("Delays of deliveries", pd.DataFrame(table), figure)

    @text_if_empty("Failed pushes")
    def failures(self, by: By = "endpoint", since: TimeOrAge | None = None) -> Picture:
        """Failed pushes by class."""
        frame = self._pushes([_column(by), "state", "error"], since)
        failed = frame[frame.state != "delivered"]
        if failed.empty:
            raise NothingToShow(f"none of {len(frame):,} pushes failed in this period")
        counts = failed.groupby([_groups(failed, by), "error"]).size().unstack(fill_value=0)
        title = f"{len(failed):,} of {many(len(frame), 'push', 'pushes')} failed, by {by} and class of failure"
        return stacked(title, counts, "failed pushes", by)

    @text_if_empty("Outcomes of deliveries")
    def outcomes(self, by: By = "endpoint", since: TimeOrAge | None = None) -> Picture:
        """Ended deliveries by outcome."""
        frame = self._tables.deliveries.pandas([_column(by), "state"], since=self._tables.start_of(since))
        if frame.empty:
            raise NothingToShow(
                "no delivery has ended in this period: publish something (arborcast up --demo), or pass an earlier "
                "since="
            )
        counts = frame.groupby([_groups(frame, by), "state"]).size().unstack(fill_value=0)
        counts = counts[[state for state in STATES if state in counts]]
        title = f"Outcomes of {many(len(frame), 'delivery', 'deliveries')} by {by}"
        return stacked(title, counts, "deliveries", by, STATES)

    @text_if_empty("Failing endpoints")
    def breakers(self, since: TimeOrAge | None = None) -> Picture:
        """Endpoints with an open breaker or served by the redelivery, over time."""
        begin = self._tables.start_of(since)
        changes = self._tables.endpoint_health.pandas(["endpoint", "at", "breaker", "sick"]).sort_values("at")
        if changes.empty:
            raise NothingToShow("no breaker has opened since the start of the engine")
        newest = max(self._tables.newest() or begin, changes["at"].max().to_pydatetime())
        return failing_endpoints(changes, begin, newest)

    @text_if_empty("Throughput")
    def throughput(self, since: TimeOrAge | None = None) -> Picture:
        """Accepted notifications and deliveries per second."""
        begin = self._tables.start_of(since)
        accepted = self._tables.notifications.pandas(["accepted_at"], since=begin).accepted_at
        ended = self._tables.deliveries.pandas(
            ["ended_at"], since=begin, where=ds.field("state") == "delivered"
        ).ended_at
        if accepted.empty and ended.empty:
            raise NothingToShow(_NO_PUSHES)
        both = pd.concat([accepted, ended])
        width = bin_seconds((both.max() - both.min()).total_seconds())
        rates = {
            # In nanoseconds: pandas 2.3 gets the union of two such indexes wrong in any other unit.
            name: pd.Series(1, index=pd.DatetimeIndex(times).as_unit("ns")).resample(f"{width}s").sum() / width
            for name, times in (("accepted", accepted), ("delivered", ended))
        }
        table = pd.DataFrame(rates).fillna(0.0)
        title = f"Notifications accepted and deliveries made per second (averages of {width} s)"
        return lines(title, table, "rate")

    @text_if_empty("Lag")
    def lag(self, since: TimeOrAge | None = None) -> Picture:
        """Age of the oldest notification at its first push; a rising line is an overload.
        Without deliveries behind an endpoint that does not answer."""
        frame = self._pushes(["number", "batch", "accepted_at", "started_at"], since)
        first = frame[(frame.number == 1) & (frame.batch >= 0)]
        if first.empty:
            raise NothingToShow(_NO_PUSHES)
        width = bin_seconds((first.started_at.max() - first.started_at.min()).total_seconds())
        ages = (first.started_at - first.accepted_at).dt.total_seconds().set_axis(first.started_at)
        table = ages.resample(f"{width}s").max().rename("oldest, s").to_frame()
        return lines(f"Age of the oldest notification at its first push, per {width} s", table, "seconds")

    @text_if_empty("Stages of first attempts")
    def stages(self, since: TimeOrAge | None = None) -> Picture:
        """Stages of first attempts: until stored, until the push, until the answer."""
        begin = self._tables.start_of(since)
        stored = self._tables.notifications.pandas(["notification", "accepted_at", "logged_at"], since=begin)
        frame = self._tables.attempts.pandas(
            ["notification", "number", "state", "started_at", "duration_ms"],
            since=begin,
            where=(ds.field("state") == "delivered") & (ds.field("number") == 1),
        ).merge(stored, on="notification")
        if frame.empty:
            raise NothingToShow(_NO_PUSHES)
        spans = {
            "until stored in Kafka": (frame.logged_at - frame.accepted_at).dt.total_seconds() * 1000,
            "until the push": (frame.started_at - frame.logged_at).dt.total_seconds() * 1000,
            "until the answer": frame.duration_ms,
            "total": (frame.started_at - frame.accepted_at).dt.total_seconds() * 1000 + frame.duration_ms,
        }
        rows = pd.DataFrame({name: quantiles(values.clip(lower=0)) for name, values in spans.items()}).T
        return ranges("Stages of first attempts", rows, [False] * len(rows), "deliveries")

    @text_if_empty("Duration of batches")
    def batches(self, since: TimeOrAge | None = None) -> Picture:
        """Duration of batches by size. A batch without pushes has no
        attempts."""
        frame = self._tables.attempts.pandas(
            ["batch", "push", "notification", "started_at", "duration_ms"],
            since=self._tables.start_of(since),
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
        with canvas(f"Duration of {many(len(table), 'batch', 'batches')} by size", 3.4) as (figure, (axes,)):
            took = table.duration_ms.clip(lower=0.1)
            axes.scatter(table.deliveries, took, s=22, color=BLUE, alpha=0.45, linewidths=0)
            axes.set(
                xscale="log", yscale="log", xlabel="deliveries in the batch", ylabel="from first push to last answer"
            )
            scale = ticks.logarithmic(float(took.min()), float(took.max()))
            put_ticks(axes, scale, "y")
            axes.set_ylim(scale[0][0], scale[-1][0] * 1.1)
            most = int(table.deliveries.max())
            put_ticks(axes, decades(most))
            axes.set_xlim(0.8, most * 1.3)
        return Picture("Duration of batches", table, figure)

    @text_if_empty("Topics")
    def tree(self, root: str = "", since: TimeOrAge | None = None) -> Picture:
        """The busiest topics (at and below `root`) with their numbers of subscriptions. The rest is summed up."""
        topics = self._tables.topics.pandas(["topic"]).topic
        columns_read: dict[TopicPath, frozenset[str]] = dict.fromkeys(map(TopicPath, topics), frozenset())
        published: dict[TopicPath, int] = {}
        # Both tables are optional: tables.archive, tables.max_routes.
        with contextlib.suppress(NoSuchTable):
            fan_out = self._tables.routes.pandas(["topic", "subscription"]).groupby("topic").subscription.agg(frozenset)
            columns_read |= {TopicPath(topic): them for topic, them in fan_out.items() if topic in columns_read}
        with contextlib.suppress(NoSuchTable):
            rows = self._tables.notifications.pandas(["topic"], since=self._tables.start_of(since))
            published = {TopicPath(topic): int(count) for topic, count in rows.topic.value_counts().items()}
        return tree(published, columns_read, root)

    @text_if_empty("Recipients")
    def recipients(self, by: Literal["topic", "subscription", "endpoint"] = "topic") -> Picture:
        """Subscriptions of each topic, or topics of each subscription or endpoint."""
        routes = self._tables.routes.pandas(["topic", "subscription", "endpoint"])
        if routes.empty:
            raise NothingToShow(
                "there are no routes: subscribe (arborcast listen TOPIC, or arborcast up --demo); a subscription to "
                "future topics has no routes yet"
            )
        counted, unit = ("subscription", "subscriptions") if by == "topic" else ("topic", "topics")
        counts = routes.groupby(by)[counted].nunique().to_frame(unit)
        return stacked(f"{unit.capitalize()} of each {by}", counts, unit, by, {unit: BLUE})

    def _pushes(self, columns: Sequence[str], since: TimeOrAge | None) -> Any:
        """One row per HTTP request. Raises NothingToShow without any."""
        columns_read = dict.fromkeys(["push", *columns])
        frame = self._tables.attempts.pandas(
            [*columns_read], since=self._tables.start_of(since), where=ds.field("push") != ""
        )
        if frame.empty:
            raise NothingToShow(_NO_PUSHES)
        return frame.drop_duplicates("push")


def _column(by: By) -> str:
    return "endpoint" if by == "host" else by


def _groups(frame: Any, by: By) -> Any:
    names = frame[_column(by)]
    return names.map(lambda url: urlsplit(url).netloc) if by == "host" else names
