"""All tables of a job: their writers, intervals and upkeep."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from arborcast.core.eventlog.topics import FRAGMENT_LOG, OPERATIONS_LOG
from arborcast.core.settings import KafkaSettings
from arborcast.core.threads import Service
from arborcast.dispatch.delivery.health import Health
from arborcast.dispatch.recording.archive import Archive, ErasedBy
from arborcast.dispatch.recording.attempts_tables import AttemptsTables
from arborcast.dispatch.recording.compaction import Joiner
from arborcast.dispatch.recording.endpoint_health import HealthHistory
from arborcast.dispatch.recording.folds import (
    DeadLettersFold,
    ErasuresFold,
    IncompleteFold,
    OperationsFold,
    RetriesFold,
    SubscriptionsFold,
    SuspensionsFold,
    TopicsFold,
)
from arborcast.dispatch.recording.follower import Work
from arborcast.dispatch.recording.state_tables import FoldedTables, RoutesSnapshot, TableFold
from arborcast.dispatch.recording.upkeep import Upkeep
from arborcast.dispatch.redelivery.events import EventListener
from arborcast.dispatch.settings import TableSettings
from arborcast.dispatch.spark.query_supervisor import StopGate
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
    TOPICS,
)
from arborcast.dispatch.tables.spec import TableSpec
from arborcast.topic_model.projections.suspensions import State
from arborcast.topic_model.routing.table import Route

logger = logging.getLogger(__name__)

# Nine tenths of a core are left to pushes.
_SHARE = 10

# Pause after a failure (Kafka unavailable, a full disk): immediate retries would not help.
_PAUSE_S = 15.0


class Recorder:
    """Runs each work at its interval until the gate closes, one after another. A failure is retried: no table stops
    pushes. The log has one entry for each kind of exception until a success, and one for that."""

    def __init__(
        self, works: Sequence[tuple[Work, float]], gate: StopGate, name: str = "recorder", share: int = _SHARE
    ) -> None:
        """`works` with their intervals in seconds. They run for one part of the time in `share`."""
        self.works = [_Scheduled(work, interval_s, share) for work, interval_s in works]
        self._gate = gate
        self._service = Service(name, self._step, close=self._close)
        self.start = self._service.start
        self.stop = self._service.stop

    def _step(self) -> float | None:
        due = min(self.works, key=lambda each: each.due, default=None)
        if due is None or self._gate.closed:
            return None
        wait_s = due.due - time.monotonic()
        if wait_s <= 0:
            due.step()
        return max(wait_s, 0.0)

    def _close(self) -> None:
        for each in self.works:
            each.work.close()


class _Scheduled:
    def __init__(self, work: Work, interval_s: float, share: int) -> None:
        self.work = work
        self.due = time.monotonic()
        self._interval_s = interval_s
        self._share = share
        self._logged: set[type[Exception]] = set()
        self._behind_since: float | None = None

    @property
    def behind_s(self) -> float:
        """The time since the begin of the first of the last steps that failed or left a rest; 0 without any."""
        since = self._behind_since
        return 0.0 if since is None else time.monotonic() - since

    def step(self) -> None:
        began = time.monotonic()
        since = began if self._behind_since is None else self._behind_since
        try:
            more = self.work.step()
            least_s = 0.0 if more else self._interval_s
            if self._logged:
                logger.info("%s is written again", self.work.name)
                self._logged.clear()
        except Exception as error:
            more, least_s = True, _PAUSE_S
            if type(error) not in self._logged:
                logger.warning("%s cannot be written: %s", self.work.name, error)
            self._logged.add(type(error))
        self._behind_since = since if more else None
        now = time.monotonic()
        self.due = now + max(least_s, (now - began) * (self._share - 1))


# The snapshot of routes is complete: a busy control log would otherwise have it written all the time.
_ROUTES_INTERVAL_S = 30.0

# The archive and the tables of attempts are read more often than they are committed, so that steps are short.
_STEP_S = 1.0

# A backlog of attempts gets half of the time: every delivery has one, and metrics count them.
_ATTEMPTS_SHARE = 2

# The archive gets a quarter: a tenth is too little for the maximum rate of publishers, and half cost a fifth of the
# throughput of batches.
_ARCHIVE_SHARE = 4

# The objective is over 28 days.
_SLO_DAYS = 29

# Interval of the erasures, which have half of the time: an operator waits for them.
_ERASURES_S = 5.0
_ERASURES_SHARE = 2

# Age of unused files of changes and snapshots before their removal; these tables are read quickly.
_STATES_UNUSED_HOURS = 1


class Recording:
    def __init__(
        self,
        kafka: KafkaSettings,
        settings: TableSettings,
        home: Path,
        gate: StopGate,
        *,
        health: Callable[[], Mapping[str, Health]],
        control_position: Callable[[], int],
        routes: Callable[[int], Sequence[tuple[Route, State]]],
        recorded: Callable[[pa.Table], None],
        joiner: Joiner | None = None,
        publish: EventListener = lambda _: None,
        operation: Callable[[str], None] = lambda _: None,
        slo: Work | None = None,
        erased: ErasedBy = lambda _: "",
        eraser: Work | None = None,
    ) -> None:
        """`health` returns the health of endpoints; `routes` a number of routes with their states, `control_position`
        their position in the control log. For `recorded` see `AttemptsTables`. `joiner` compacts append-only tables.
        `publish` is called with messages that were given up, `operation` with the interface of each operation. `slo`
        writes the table of that name. `erased` is as for `Archive`."""
        self._settings = settings
        self._home = home
        self.attempts = AttemptsTables(
            kafka, self._at(ATTEMPTS), self._at(DELIVERIES), settings.interval_s, recorded=recorded
        )
        self.archive = (
            Archive(kafka, self._at(NOTIFICATIONS), settings.interval_s, erased=erased) if settings.archive else None
        )
        folds: dict[str, Sequence[TableFold]] = {
            "control": (TopicsFold(), SubscriptionsFold(), SuspensionsFold(), ErasuresFold()),
            "parked": (RetriesFold(),),
            "dead": (DeadLettersFold(),),
            FRAGMENT_LOG: (IncompleteFold(publish),),
            OPERATIONS_LOG: (OperationsFold(operation),),
        }
        interval_s, upkeep_s = settings.interval_s, settings.upkeep_interval_s
        states: list[tuple[Work, float]] = [
            *((FoldedTables(kafka, log, some, self._at), interval_s) for log, some in folds.items()),
            (HealthHistory(self._at(ENDPOINT_HEALTH), health), interval_s),
        ]
        if settings.max_routes:
            snapshot = RoutesSnapshot(self._at(ROUTES), settings.max_routes, control_position, routes)
            states.append((snapshot, max(interval_s, min(_ROUTES_INTERVAL_S, 3 * interval_s))))
        # In the thread of the changes, since a compaction during a change makes one of them fail.
        states += [(self._upkeep(spec), upkeep_s) for spec in (TOPICS, ROUTES, RETRIES, DEAD_LETTERS, ERASURES)]
        days = settings.history_days
        states.append((self._upkeep(SUBSCRIPTIONS, days, "state = 'ended' and ended_at < '{}'"), upkeep_s))
        states.append((self._upkeep(INCOMPLETE, days, "given_up_at < '{}'"), upkeep_s))
        states.append((self._upkeep(OPERATIONS, settings.operations_days, "at < '{}'"), upkeep_s))
        events: list[tuple[Work, float]] = [
            (self._upkeep(NOTIFICATIONS, settings.notifications_days, joiner=joiner), upkeep_s),
            (self._upkeep(ATTEMPTS, settings.deliveries_days, joiner=joiner), upkeep_s),
            (self._upkeep(DELIVERIES, settings.deliveries_days, joiner=joiner), upkeep_s),
            (self._upkeep(ENDPOINT_HEALTH, days, joiner=joiner), upkeep_s),
        ]
        step_s = min(_STEP_S, interval_s)
        archive = [(self.archive, step_s)] if self.archive else []
        self._without_lag = (
            Recorder(states, gate, "record-states"),
            Recorder(events, gate, "upkeep"),
            # The upkeep in the same thread: of two commits that rewrite rows one fails.
            Recorder([(slo, step_s), (self._upkeep(SLO, _SLO_DAYS), upkeep_s)] if slo else [], gate, "slo"),
        )
        self._recorders = (
            *self._without_lag,
            Recorder([(self.attempts, step_s)], gate, "attempts", _ATTEMPTS_SHARE),
            Recorder(archive, gate, "archive", _ARCHIVE_SHARE),
            Recorder([(eraser, _ERASURES_S)] if eraser else [], gate, "erasures", _ERASURES_SHARE),
        )

    def behind(self) -> dict[str, float]:
        """The seconds by name, of the works without a metric for their lag; erasures may take hours."""
        return {each.work.name: each.behind_s for recorder in self._without_lag for each in recorder.works}

    def open(self) -> None:
        """Create the largest tables; afterwards their first commit costs no more than the others.

        A table that cannot be opened is opened again by its next write: no table stops pushes.
        """
        for tables in filter(None, (self.attempts, self.archive)):
            try:
                tables.open()
            except Exception as error:
                logger.warning("%s cannot be written: %s", tables.name, error)

    def start(self) -> None:
        for recorder in self._recorders:
            recorder.start()

    def stop(self, timeout_s: float) -> None:
        """Wait up to this time for each write, after the gate was closed. An interrupted one is repeated after the next
        start."""
        for recorder in self._recorders:
            recorder.stop()
        for recorder in self._recorders:
            recorder.stop(timeout_s)

    def _at(self, spec: TableSpec) -> str:
        return spec.location(self._settings, self._home)

    def _upkeep(self, spec: TableSpec, days: int | None = None, old: str = "", joiner: Joiner | None = None) -> Upkeep:
        states = not spec.partition_by
        return Upkeep(
            spec,
            self._at(spec),
            joiner,
            days=days,
            unused_hours=_STATES_UNUSED_HOURS if states else self._settings.unused_files_hours,
            old=old,
        )
