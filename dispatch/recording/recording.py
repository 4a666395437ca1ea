"""All the tables of a job: who writes which, how often, and what keeps them small."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from core.eventlog.settings import KafkaSettings
from dispatch.recording.archive import Archive
from dispatch.recording.attempts_tables import AttemptsTable
from dispatch.recording.control_tables import SubscriptionsFold, SuspensionsFold, TopicsFold
from dispatch.recording.endpoint_health import EndpointState, HealthHistory
from dispatch.recording.maintenance import Upkeep
from dispatch.recording.parked_tables import DeadLettersFold, RetriesFold
from dispatch.recording.state_tables import Fold, FoldedTables, RoutesSnapshot
from dispatch.recording.table_writer import Recorder, Work
from dispatch.settings import TableSettings
from dispatch.spark.query_keeper import StopGate
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
from topic_model.projections.suspensions import State
from topic_model.routing.table import Route

logger = logging.getLogger(__name__)

# The snapshot of routes is written whole: a busy control log would otherwise have it written all the time.
_ROUTES_INTERVAL_S = 30.0

# The archive reads more often than it commits, so that no step is long, and a quarter of the time when it has fallen
# behind: with a tenth it would not keep up with all that publishers may send, with a half it took a fifth of their
# throughput from the batches.
_ARCHIVE_STEP_S = 1.0
_ARCHIVE_SHARE = 4

# Merges and snapshots leave the files that they have replaced behind; they are read quickly.
_STATES_UNUSED_HOURS = 1


class Recording:
    """The tables that are written beside the queries, and the two that a query writes."""

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: TableSettings,
        home: Path,
        gate: StopGate,
        *,
        health: Callable[[], Mapping[str, EndpointState]],
        control_position: Callable[[], int],
        routes: Callable[[int], Sequence[tuple[Route, State]]],
    ) -> None:
        """`health` gives what is known of endpoints; `routes` so many routes at most, with the state of each,
        `control_position` the offset up to which the control log is in them."""
        self._settings = settings
        self._home = home
        self.attempts = AttemptsTable(self._at(ATTEMPTS), self._at(DELIVERIES))
        self.archive = Archive(kafka, self._at(NOTIFICATIONS), settings.interval_s) if settings.archive else None
        subscriptions = self._at(SUBSCRIPTIONS)
        control: list[tuple[str, Fold]] = [
            (self._at(TOPICS), TopicsFold()),
            (subscriptions, SubscriptionsFold()),
            (subscriptions, SuspensionsFold()),
        ]
        interval_s, upkeep_s = settings.interval_s, settings.upkeep_interval_s
        states: list[tuple[Work, float]] = [
            (FoldedTables(kafka, "control", control), interval_s),
            (FoldedTables(kafka, "parked", [(self._at(RETRIES), RetriesFold())]), interval_s),
            (FoldedTables(kafka, "dead", [(self._at(DEAD_LETTERS), DeadLettersFold())]), interval_s),
            (HealthHistory(self._at(ENDPOINT_HEALTH), health), interval_s),
        ]
        if settings.max_routes:
            snapshot = RoutesSnapshot(self._at(ROUTES), settings.max_routes, control_position, routes)
            states.append((snapshot, max(interval_s, min(_ROUTES_INTERVAL_S, 3 * interval_s))))
        # In the thread of those who merge, because joining files under a merge makes one of the two fail.
        states += [(self._upkeep(spec), upkeep_s) for spec in (TOPICS, ROUTES, RETRIES, DEAD_LETTERS)]
        ended = settings.ended_subscriptions_days
        states.append((self._upkeep(SUBSCRIPTIONS, ended, "state = 'ended' and ended_at < '{}'"), upkeep_s))
        events: list[tuple[Work, float]] = [
            (self._upkeep(NOTIFICATIONS, settings.notifications_days), upkeep_s),
            (self._upkeep(ATTEMPTS, settings.attempts_days), upkeep_s),
            (self._upkeep(DELIVERIES, settings.deliveries_days), upkeep_s),
            (self._upkeep(ENDPOINT_HEALTH, settings.endpoint_health_days), upkeep_s),
        ]
        archive = [(self.archive, min(_ARCHIVE_STEP_S, settings.interval_s))] if self.archive else []
        self._recorders = (
            Recorder(states, gate, "record-states"),
            Recorder(events, gate, "upkeep"),
            Recorder(archive, gate, "archive", _ARCHIVE_SHARE),
        )

    def open(self) -> None:
        """Create the largest tables; afterwards their first commit costs no more than the others.

        One that cannot be opened now is tried again when it is written: no table is a reason not to push.
        """
        for tables, name in ((self.attempts, "attempts"), (self.archive, "notifications")):
            try:
                if tables is not None:
                    tables.open()
            except Exception as error:
                logger.warning("%s is not written for now: %s", name, error)

    def start(self) -> None:
        """Begin to write the tables that no query writes."""
        for recorder in self._recorders:
            recorder.start()

    def stop(self, timeout_s: float) -> bool:
        """Wait until nothing is being written, the gate being closed; whether that was so in time. What is cut short
        is written after the next start."""
        stopped = [recorder.stop(timeout_s) for recorder in self._recorders]
        return all(stopped)

    def _at(self, spec: TableSpec) -> str:
        return spec.location(self._settings, self._home)

    def _upkeep(self, spec: TableSpec, days: int | None = None, old: str = "") -> Upkeep:
        states = not spec.partition_by
        return Upkeep(
            spec,
            self._at(spec),
            days=days,
            unused_hours=_STATES_UNUSED_HOURS if states else self._settings.unused_files_hours,
            old=(lambda before: old.format(before.isoformat())) if old else None,
        )
