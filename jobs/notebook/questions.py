"""All tables of an engine, and the questions that are asked most."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Literal

import pyarrow.dataset as ds

from dispatch.tables import (
    ATTEMPTS,
    DEAD_LETTERS,
    DELIVERIES,
    ENDPOINT_HEALTH,
    NOTIFICATIONS,
    RETRIES,
    ROUTES,
    SUBSCRIPTIONS,
    TOPICS,
    TableSpec,
)
from jobs.notebook.reader import TableReader, When, as_time

if TYPE_CHECKING:
    import pandas as pd

    from core.settings import KafkaSettings
    from dispatch.operations.trace.story import Story
    from jobs.settings.loading import Settings

_HOUR = timedelta(hours=1)
_ENDS = ("delivered", "dead", "expired", "cancelled")


class Tables:
    """The tables as attributes. The settings are read when they are first needed."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings

    @property
    def settings(self) -> Settings:
        """Which engine this is."""
        if self._settings is None:
            from jobs.settings.loading import load_settings

            self._settings = load_settings()
        return self._settings

    @property
    def topics(self) -> TableReader:
        """The topic tree."""
        return self._table(TOPICS)

    @property
    def subscriptions(self) -> TableReader:
        """Current subscriptions, and ended ones."""
        return self._table(SUBSCRIPTIONS)

    @property
    def routes(self) -> TableReader:
        """Who gets what."""
        return self._table(ROUTES)

    @property
    def notifications(self) -> TableReader:
        """The archive."""
        return self._table(NOTIFICATIONS)

    @property
    def attempts(self) -> TableReader:
        """Every push."""
        return self._table(ATTEMPTS)

    @property
    def deliveries(self) -> TableReader:
        """What has ended."""
        return self._table(DELIVERIES)

    @property
    def retries(self) -> TableReader:
        """What waits."""
        return self._table(RETRIES)

    @property
    def dead_letters(self) -> TableReader:
        """What was given up."""
        return self._table(DEAD_LETTERS)

    @property
    def endpoint_health(self) -> TableReader:
        """Breakers over time."""
        return self._table(ENDPOINT_HEALTH)

    def story(self, notification_id: str, subscription: str | None = None) -> Story:
        """What became of a notification, as `arborcast trace` tells it; of one subscription, as `why` does."""
        from dispatch.operations.trace.explain import explain
        from dispatch.operations.trace.gathering import Gatherer
        from jobs.stack.state import dispatch_checkpoint, reachable_kafka

        settings = self.settings
        gatherer = Gatherer(
            reachable_kafka(settings), settings.tables, settings.home, dispatch_checkpoint(settings, "push")
        )
        return explain(gatherer.gather(notification_id, subscription), subscription)

    def trace(self, notification_id: str) -> pd.DataFrame:
        """Every step of a notification in order: when, for which subscription (empty: for all), what."""
        import pandas as pd

        story = self.story(notification_id)
        rows = [(step.at, "", step.what, step.detail) for step in story.steps]
        for delivery in story.deliveries:
            rows.append((None, delivery.subscription, "matched by", delivery.expression))
            rows += [(step.at, delivery.subscription, step.what, step.detail) for step in delivery.steps]
            rows.append((None, delivery.subscription, delivery.outcome, delivery.why))
        frame = pd.DataFrame(rows, columns=["at", "subscription", "what", "detail"])
        frame["at"] = pd.to_datetime(frame["at"], utc=True)
        return frame

    def audit(
        self, since: When | None = None, until: When | None = None, *, of: Literal["logs", "tables"] | None = None
    ) -> pd.Series[int]:
        """Whether everything is accounted for. The result's name says what was looked at.

        `begun` = `delivered` + `dead` + `expired` + `cancelled` + `waiting` + `missing`; `missing` and `twice` must be
        zero. Of the logs, which is the default where Kafka answers, it is what `arborcast audit` finds, by the time of
        acceptance, of a running engine too. Of the tables it goes by the time of the first attempt; an engine must be
        at rest for it, because its tables are some seconds apart.
        """
        from jobs.stack.state import answers, reachable_kafka

        kafka = reachable_kafka(self.settings)
        if of == "logs" or (of is None and answers(kafka)):
            return self._audit_of_logs(kafka, since, until)
        return self._audit_of_tables(since, until)

    def _audit_of_logs(self, kafka: KafkaSettings, since: When | None, until: When | None) -> pd.Series[int]:
        import pandas as pd

        from dispatch.operations.audit import audit

        report = audit(kafka, _milliseconds(since) or 0, _milliseconds(until))
        twice = sum(problem.kind == "surplus" for problem in report.problems)
        totals = report.totals
        result = pd.Series(
            {
                "begun": report.matches,
                **{state: getattr(totals, state) for state in _ENDS},
                "waiting": totals.pending,
                "missing": report.unbalanced - twice,
                "twice": twice,
            },
            name="audit of the logs",
        )
        result.attrs["notes"] = report.notes
        return result

    def _audit_of_tables(self, since: When | None, until: When | None) -> pd.Series[int]:
        import pandas as pd

        pair = ["notification", "subscription"]
        begun = self.attempts.arrow(pair, since=since, until=until).group_by(pair).aggregate([])
        # What was begun in this span may have ended after it.
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

    def slowest_endpoints(self, count: int = 10, since: When | None = _HOUR) -> pd.DataFrame:
        """The endpoints that took longest to answer, of the pushes since then: how many, how many failed, and how long
        they took in milliseconds."""
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

    def _table(self, spec: TableSpec) -> TableReader:
        return TableReader(spec, spec.location(self.settings.tables, self.settings.home))


def _milliseconds(when: When | None) -> int | None:
    return None if when is None else round(as_time(when).timestamp() * 1000)
