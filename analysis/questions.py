"""The tables of an engine, and common questions."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Literal

import pandas as pd
import pyarrow.compute as pc
import pyarrow.dataset as ds

from arborcast.analysis.plots import Plots
from arborcast.analysis.reader import NoSuchTable, TableReader, TimeOrAge, as_time
from arborcast.analysis.rows import Rows
from arborcast.analysis.timeline import Timeline, table_of, timeline
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.operations.trace.evidence import Evidence, Explanation
from arborcast.dispatch.tables import (
    ATTEMPTS,
    DEAD_LETTERS,
    DELIVERIES,
    ENDPOINT_HEALTH,
    ERASURES,
    INCOMPLETE,
    NOTIFICATIONS,
    OPERATIONS,
    RETRIES,
    ROUTES,
    SLO,
    SUBSCRIPTIONS,
    TABLES,
    TOPICS,
)
from arborcast.dispatch.tables.spec import TableSpec, newest
from arborcast.engine.embedded.questions import answers
from arborcast.engine.embedded.state import reachable_kafka
from arborcast.engine.settings.loading import Settings, load_settings

_HOUR = timedelta(hours=1)
_ENDS = ("delivered", "dead", "expired", "cancelled", "dropped")

_BACKLOG = """
    select subscription, count(*) as waiting, min(accepted_at) as oldest, min(due_at) as next_try,
           max(tries) as most_tries
    from retries group by subscription order by waiting desc, subscription
"""
_REASONS = """
    select reason, count(*) as subscriptions from subscriptions where state = 'ended' group by reason
    order by subscriptions desc, reason
"""
_LATEST_LETTERS = """
    select ended_at, subscription, endpoint, topic, error, detail, attempts, notification
    from dead_letters where ended_at >= '{}' order by ended_at desc limit {}
"""


class _TableOf:
    """A table as an attribute."""

    def __init__(self, spec: TableSpec) -> None:
        self._spec = spec

    def __get__(self, tables: Tables, owner: type[Tables]) -> TableReader:
        return tables.table(self._spec)


class Tables:
    """The tables as attributes. The settings are read on the first use."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings

    @property
    def settings(self) -> Settings:
        if self._settings is None:
            self._settings = load_settings()
        return self._settings

    topics = _TableOf(TOPICS)
    subscriptions = _TableOf(SUBSCRIPTIONS)
    routes = _TableOf(ROUTES)
    notifications = _TableOf(NOTIFICATIONS)
    attempts = _TableOf(ATTEMPTS)
    deliveries = _TableOf(DELIVERIES)
    retries = _TableOf(RETRIES)
    dead_letters = _TableOf(DEAD_LETTERS)
    endpoint_health = _TableOf(ENDPOINT_HEALTH)
    incomplete = _TableOf(INCOMPLETE)
    operations = _TableOf(OPERATIONS)
    erasures = _TableOf(ERASURES)
    slo = _TableOf(SLO)

    @property
    def plot(self) -> Plots:
        """Charts: `tables.plot.latency(by="endpoint")`, `tables.plot.tree("plant")` and others."""
        return Plots(self)

    def newest(self) -> datetime | None:
        """The time of the last acceptance or attempt in the tables; None without any."""
        found = []
        for table in (self.notifications, self.attempts):
            with contextlib.suppress(NoSuchTable):
                found.append(newest(table.delta(), table.spec.time))
        return max((at for at in found if at is not None), default=None)

    def start_of_last(self, span: timedelta = _HOUR) -> datetime:
        """The start of the last period of this length in the tables, also of an idle engine."""
        return (self.newest() or datetime.now(UTC)) - span

    def explanation(self, notification_id: str, subscription: str | None = None) -> Explanation:
        """The history of a notification, as in `arborcast trace`; for one subscription, as in `why`."""
        from arborcast.dispatch.operations.trace.explain import explain

        return explain(self._evidence(notification_id, subscription), subscription)

    def timeline(self, notification_id: str = "") -> Timeline:
        """The history of a notification: a lane per subscription, attempts as marks, waiting times shaded.
        `.table` has every step, `.outcomes` the state per subscription, `.payload` the message. Without an id: the
        notification with the most attempts in their last hour."""
        from arborcast.dispatch.operations.trace.explain import explain

        chosen = notification_id or self.most_tried()
        if not chosen:
            text = "there are no notifications yet: publish one (arborcast publish, or arborcast up --demo)"
            return Timeline("History of a notification", pd.DataFrame(), text=text)
        evidence = self._evidence(chosen)
        explanation = explain(evidence)
        if not explanation.found:
            text = f"there are no records of {chosen}: an id is the value of arborcast-notification-id in pushes"
            return Timeline("History of a notification", pd.DataFrame(), text="; ".join([text, *explanation.notes]))
        return timeline(explanation, evidence.attempts, evidence.waiting)

    def trace(self, notification_id: str) -> pd.DataFrame:
        """Every step of a notification in order: time, subscription (empty: all), step."""
        return table_of(self.explanation(notification_id))

    def most_tried(self) -> str:
        """The notification with the most attempts in their last hour, or the newest without any; empty without
        notifications."""
        for table, order in ((self.attempts, "count_all"), (self.notifications, "notification")):
            with contextlib.suppress(NoSuchTable):
                # A day of a busy engine has a hundred million.
                last = newest(table.delta(), table.spec.time)
                rows = table.arrow(["notification"], since=last and last - _HOUR)
                rows = rows.group_by("notification").aggregate([([], "count_all")])
                if rows.num_rows:
                    found = rows.sort_by([(order, "descending"), ("notification", "descending")])["notification"][0]
                    return str(found.as_py())
        return ""

    def overview(self) -> pd.DataFrame:
        """The tables with their numbers of rows and contents."""
        rows = []
        for spec in TABLES:
            table = self.table(spec)
            with contextlib.suppress(NoSuchTable):
                rows.append((spec.name, len(table), spec.help))
        frame = pd.DataFrame(rows, columns=["table", "rows", "contents"]).set_index("table")
        return Rows.of(
            frame, "there are no tables yet: the engine creates them some seconds after its start (arborcast up)"
        )

    def backlog(self) -> pd.DataFrame:
        """Waiting deliveries by subscription: number, age, next attempt, attempts."""
        waiting = self.retries.query(_BACKLOG)
        return Rows.of(waiting.set_index("subscription"), "no delivery waits")

    def failures(self, since: TimeOrAge | None = None) -> pd.DataFrame:
        """Failures by kind and endpoint, with the last text; the most frequent first. `since` None: the last hour of
        the tables."""
        columns = ["endpoint", "error", "status", "started_at", "notification", "detail"]
        failed = (ds.field("state") != "delivered") & (ds.field("push") != "")
        kinds = (
            self.attempts.pandas(columns, since=self.start_of(since), where=failed)
            .sort_values("started_at")
            .groupby(["endpoint", "error", "status"], as_index=False)
            .agg(attempts=("notification", "count"), last_at=("started_at", "max"), detail=("detail", "last"))
        )
        kinds = kinds.sort_values("attempts", ascending=False, ignore_index=True)
        return Rows.of(kinds, "no push has failed in this period; pass an earlier since=")

    def queues(self, since: TimeOrAge | None = None) -> pd.DataFrame:
        """Work of queue workers: a row per queue and worker with its requests, merged requests, unacknowledged pushes,
        and durations (milliseconds). `since` None: the last hour of the tables."""
        columns = ["topic", "endpoint", "state", "error", "push", "duration_ms"]
        of_queues = pc.starts_with(ds.field("subscription"), "queue:") & (ds.field("push") != "")
        sent = self.attempts.pandas(columns, since=self.start_of(since), where=of_queues)
        sent["merged"] = sent.error == "merged"
        sent["done"] = (sent.state == "delivered") & ~sent.merged
        sent["unanswered"] = sent.state != "delivered"
        grouped = sent.groupby(["topic", "endpoint"])
        done = grouped[["done", "merged", "unanswered"]].sum()
        done["p50_ms"] = grouped.duration_ms.median()
        done = done.reset_index().rename(columns={"topic": "queue"})
        return Rows.of(done, "no request was sent to a worker in this period; pass an earlier since=")

    def latest_dead_letters(self, since: TimeOrAge | None = None, count: int = 1_000) -> pd.DataFrame:
        """Dead letters, the newest first, up to `count`."""
        begin = datetime.fromtimestamp(0, UTC) if since is None else as_time(since)
        frame = self.dead_letters.query(_LATEST_LETTERS.format(begin.isoformat(), int(count)))
        return Rows.of(frame, "there are no dead letters")

    def suspended_or_paused(self) -> pd.DataFrame:
        """Suspended and paused subscriptions."""
        frame = self._subscribed(["subscription", "state", "suspended_at", "endpoint", "owner", "expression"])
        stopped = frame[frame.suspended_at.notna() | (frame.state == "paused")]
        return Rows.of(
            stopped.sort_values(["suspended_at", "endpoint"], ignore_index=True),
            "no subscription is suspended or paused",
        )

    def topics_without_subscriptions(self) -> pd.DataFrame:
        """Topics without subscriptions."""
        frame = self.topics.pandas(["topic", "changed_at"])
        found = frame[~frame.topic.isin(self.routes.pandas(["topic"]).topic)]
        return Rows.of(
            found.sort_values("topic", ignore_index=True), "every topic has a subscription, or there are no topics"
        )

    def subscriptions_without_topics(self) -> pd.DataFrame:
        """Subscriptions without topics: often a typing error, or a future topic."""
        frame = self._subscribed(["subscription", "state", "endpoint", "expression", "created_at"])
        found = frame[~frame.subscription.isin(self.routes.pandas(["subscription"]).subscription)]
        return Rows.of(
            found.reset_index(drop=True), "every subscription selects a topic, or there are no subscriptions"
        )

    def end_reasons(self) -> pd.DataFrame:
        """Reasons of ended subscriptions."""
        return Rows.of(self.subscriptions.query(_REASONS).set_index("reason"), "no subscription has ended")

    def push_sizes(self, since: TimeOrAge | None = None) -> pd.DataFrame:
        """Messages per push and reused connections; sizes are in bytes."""
        begin = self.start_of(since)
        sizes = self.notifications.pandas(["payload_bytes", "logged_at", "recorded_at"], since=begin)
        pushes = self.attempts.pandas(
            ["push", "messages", "reused", "request_bytes"], since=begin, where=ds.field("push") != ""
        ).drop_duplicates("push")
        values = {
            "notifications": len(sizes),
            "payload bytes, mean": sizes.payload_bytes.mean(),
            "table behind the log (s), longest": (sizes.recorded_at - sizes.logged_at).dt.total_seconds().max(),
            "pushes": len(pushes),
            "notifications per push, mean": pushes.messages.mean(),
            "pushes on a reused connection (%)": 100 * pushes.reused.mean(),
            "request bytes, mean": pushes.request_bytes.mean(),
        }
        frame = pd.DataFrame({"value": pd.Series(values).astype(float).round(2)}).dropna().rename_axis("what")
        return Rows.of(frame, "nothing was published in this period")

    def audit(
        self,
        since: TimeOrAge | None = None,
        until: TimeOrAge | None = None,
        *,
        of: Literal["logs", "tables"] | None = None,
    ) -> pd.Series[int]:
        """Whether every delivery has an outcome; the name of the result is its source.

        `begun` = `delivered` + `dead` + `expired` + `cancelled` + `dropped` + `waiting` + `missing`; `missing` and
        `twice` must be zero. From the logs (the default if Kafka answers) it is the result of `arborcast audit`, by
        time of acceptance, also of a running engine. From the tables it is by time of the first attempt, for an idle
        engine, since tables are some seconds apart. `since` None: the last hour of the tables.
        """
        kafka, begin = reachable_kafka(self.settings), self.start_of(since)
        if of == "logs" or (of is None and answers(kafka)):
            return self._audit_of_logs(kafka, begin, until)
        return self._audit_of_tables(begin, until)

    def _audit_of_logs(self, kafka: KafkaSettings, since: datetime, until: TimeOrAge | None) -> pd.Series[int]:
        from arborcast.dispatch.operations.audit import audit

        report = audit(kafka, _milliseconds(since), None if until is None else _milliseconds(until))
        totals = report.totals
        result = pd.Series(
            {
                "begun": report.matches,
                **{state: getattr(totals, state) for state in _ENDS},
                "waiting": totals.pending,
                "missing": report.unbalanced - report.surplus,
                "twice": report.surplus,
            },
            name="audit of the logs",
        )
        result.attrs["notes"] = report.notes
        return result

    def _audit_of_tables(self, since: datetime, until: TimeOrAge | None) -> pd.Series[int]:
        from arborcast.dispatch.operations.audit.ledger import PURGED_ERROR

        pair = ["notification", "subscription"]
        # The row of a purge may be long after the end of its delivery.
        pushed = ds.field("error") != PURGED_ERROR
        begun = self.attempts.arrow(pair, since=since, until=until, where=pushed).group_by(pair).aggregate([])
        # Deliveries begun in this span may have ended after it.
        ended = self.deliveries.arrow([*pair, "state"], since=since)
        found = begun.join(ended, keys=pair, join_type="left outer")
        waiting = self.retries.arrow(pair)
        states = found["state"].value_counts().to_pylist()
        counts = {each["values"]: each["counts"] for each in states}
        open_ = found.filter(ds.field("state").is_null()).select(pair)
        missing = open_.join(waiting, keys=pair, join_type="left anti").num_rows
        return pd.Series(
            {
                "begun": begun.num_rows,
                **{state: counts.get(state, 0) for state in _ENDS},
                "waiting": open_.num_rows - missing,
                "missing": missing,
                "twice": found.num_rows - begun.num_rows,
            },
            name="audit of the tables",
        )

    def slowest_endpoints(self, count: int = 10, since: TimeOrAge | None = _HOUR) -> pd.DataFrame:
        """The endpoints with the slowest pushes since then: number, failures, and durations in milliseconds."""
        frame = self.attempts.pandas(
            ["endpoint", "push", "state", "duration_ms"], since=since, where=ds.field("push") != ""
        )
        pushes = frame.drop_duplicates("push")
        grouped = pushes.groupby("endpoint")
        result = grouped.duration_ms.quantile([0.5, 0.99]).unstack().set_axis(["p50_ms", "p99_ms"], axis=1)
        result["longest_ms"] = grouped.duration_ms.max()
        result.insert(0, "pushes", grouped.size())
        result.insert(1, "failed", (pushes.state != "delivered").groupby(pushes.endpoint).sum())
        return result.nlargest(count, "p99_ms")

    def _evidence(self, notification_id: str, subscription: str | None = None) -> Evidence:
        from arborcast.dispatch.operations.trace.gathering import Gatherer

        settings = self.settings
        kafka = reachable_kafka(settings)
        if not answers(kafka):
            # Without an engine, report it and use the tables.
            kafka = replace(kafka, request_timeout_s=1)
        gatherer = Gatherer(kafka, settings.tables, settings.home)
        return gatherer.gather(notification_id, subscription)

    def start_of(self, since: TimeOrAge | None) -> datetime:
        """The time; without one the start of the last hour in the tables."""
        return self.start_of_last() if since is None else as_time(since)

    def _subscribed(self, columns: list[str]) -> pd.DataFrame:
        return self.subscriptions.pandas(columns, where=ds.field("state") != "ended")

    def table(self, spec: TableSpec) -> TableReader:
        """The table of this description."""
        return TableReader(spec, spec.location(self.settings.tables, self.settings.home))


def _milliseconds(when: TimeOrAge) -> int:
    return round(as_time(when).timestamp() * 1000)
