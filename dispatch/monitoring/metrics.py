"""The dispatch job's /metrics; dashboards rely on names and units.

All values are counted on the driver: batches when they are run, attempts when they are recorded (by columns, after the
commit, at no cost for pushes), lag and Spark's figures on request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import nlargest, nsmallest
from itertools import accumulate, product, zip_longest
from typing import NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arborcast.core.telemetry.metrics import BUCKETS, Registry
from arborcast.dispatch.delivery.health import HEALTHY, Health
from arborcast.dispatch.logs.attempts import ErrorClass
from arborcast.dispatch.monitoring.sources import Sources
from arborcast.dispatch.queues.servers import QueueFigures

WINDOW_S = 300.0

MAX_ENDPOINTS = 2_000


@dataclass(frozen=True)
class EndpointFigures:
    """Pushes to one endpoint: number, failures, total and longest time in seconds, and their numbers by `BUCKETS` of
    seconds."""

    endpoint: str
    pushes: int
    failed: int
    seconds: float
    longest: float
    buckets: tuple[int, ...] = ()

    @property
    def mean_s(self) -> float:
        return self.seconds / self.pushes if self.pushes else 0.0

    @property
    def p99_s(self) -> float:
        """The upper bound of the bucket of the 99th percentile, limited to the longest push."""
        least = 0.99 * self.pushes
        for bound, count in zip(BUCKETS, accumulate(self.buckets), strict=False):
            if count >= least:
                return min(bound, self.longest)
        return self.longest

    def with_more(self, other: EndpointFigures) -> EndpointFigures:
        return EndpointFigures(
            self.endpoint,
            self.pushes + other.pushes,
            self.failed + other.failed,
            self.seconds + other.seconds,
            max(self.longest, other.longest),
            tuple(one + more for one, more in zip_longest(self.buckets, other.buckets, fillvalue=0)),
        )


class FailingEndpoint(NamedTuple):
    """An endpoint with a failed push in the last minutes, or with continuing failures."""

    figures: EndpointFigures
    health: Health


class EndpointsSeen:
    """The last five to ten minutes: two windows; the older one is dropped when the younger is full. Each has at most
    MAX_ENDPOINTS; the quickest are dropped first."""

    def __init__(self) -> None:
        self._began = 0.0
        self._now: dict[str, EndpointFigures] = {}
        self._before: dict[str, EndpointFigures] = {}

    def add(self, figures: Iterable[EndpointFigures], now: float) -> None:
        """Add figures. `now`: seconds of a clock."""
        self._rotate(now)
        for one in figures:
            known = self._now.get(one.endpoint)
            self._now[one.endpoint] = known.with_more(one) if known else one
        if len(self._now) > MAX_ENDPOINTS:
            slowest_ones = sorted(self._now.values(), key=lambda one: (one.failed, one.mean_s), reverse=True)
            self._now = {one.endpoint: one for one in slowest_ones[: MAX_ENDPOINTS // 2]}

    def slowest(self, count: int, now: float) -> list[EndpointFigures]:
        """The endpoints with the longest average push."""
        return sorted(self.together(now).values(), key=lambda one: (one.mean_s, one.failed), reverse=True)[:count]

    def together(self, now: float) -> dict[str, EndpointFigures]:
        """Both windows, by endpoint."""
        self._rotate(now)
        together = self._before.copy()
        for endpoint, one in self._now.items():
            known = together.get(endpoint)
            together[endpoint] = known.with_more(one) if known else one
        return together

    def _rotate(self, now: float) -> None:
        lasts_s = abs(now - self._began)  # the clock may have been put back
        if lasts_s > WINDOW_S:
            self._before = self._now if lasts_s <= 2 * WINDOW_S else {}
            self._now = {}
            self._began = now


# By name: minutes.
_WINDOWS = {"5m": 5, "30m": 30, "1h": 60, "6h": 360}


class BurnRates:
    """The shares of late and lost deliveries in windows of time. For each minute with deliveries two numbers are
    stored, for six hours."""

    def __init__(self) -> None:
        self._minutes: dict[int, tuple[int, int]] = {}

    def add(self, counts: Mapping[str, int], now: float) -> None:
        """Add deliveries by their result for the objective."""
        minute, oldest = int(now // 60), int(now // 60) - max(_WINDOWS.values())
        bad, counted = self._minutes.pop(minute, (0, 0))
        bad += counts.get("late", 0) + counts.get("lost", 0)
        counted += sum(counts.values()) - counts.get("receiver", 0)
        self._minutes[minute] = bad, counted
        for each in [each for each in self._minutes if not oldest < each <= minute]:
            del self._minutes[each]

    def shares(self, now: float) -> dict[str, float]:
        """The shares, by the name of the window."""
        minute, found = now / 60, {}
        for name, minutes in _WINDOWS.items():
            some = [both for each, both in self._minutes.items() if minute - minutes < each]
            counted = sum(number for _, number in some)
            found[name] = sum(bad for bad, _ in some) / counted if counted else 0.0
        return found


# Of a queue: each has a label.
_MOST_SERVERS = 50
_MOST_QUEUES = 100

# Seconds from acceptance to answer: retries may take days. A quantile is wrong by at most the factor of two bounds.
_DELIVERY_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0),
)

# Seconds of a batch: from an empty one to one with pushes that timed out, several times.
_BATCH_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Stages:
    """A clock that is read at the end of each stage of a batch; a stage may occur several times in a batch."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def over(self, stage: str, *parts: tuple[str, float]) -> None:
        """End of a stage; `parts` of it, with their seconds, are stages of their own."""
        now = time.perf_counter()
        for name, seconds in ((stage, now - self._last - sum(seconds for _, seconds in parts)), *parts):
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self._last = now


class JobMetrics:
    """Metrics of the job. `sources` is set when the job has them."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.registry = Registry()
        self.sources = Sources()
        self.mode: Callable[[], str] = lambda: "batch"
        self.slo_target = 1.0
        self._clock = clock
        self._endpoints = EndpointsSeen()
        self._burns = BurnRates()
        self._batch_began: float | None = None
        self._lock = threading.Lock()
        self._declare_batches(self.registry)
        self._declare_deliveries(self.registry)
        self._declare_queues(self.registry)
        self._declare_view(self.registry)

    @contextmanager
    def batch(self) -> Iterator[Stages]:
        """A batch of the hot path; its stages' measurements count when it completes."""
        self._batch_began = self._clock()
        stages = Stages()
        try:
            yield stages
        finally:
            self._batch_began = None
        for stage, seconds in stages.seconds.items():
            self._stage_seconds.observe(seconds, stage)
        self._batches.add()

    def query_failed(self) -> None:
        """The query is started again after a failure: of a batch, of a run in real time, or of its start."""
        self._failed_batches.add()

    def worker_hung(self) -> None:
        """A Python worker, or the daemon of the workers, was killed because it hung."""
        self._hung_workers.add()

    def dispatched(self, notifications: int, deliveries: int, thinned: int = 0) -> None:
        """A batch has matched this number of notifications, with this number of deliveries, without those `thinned` by
        a minimum interval."""
        self._notifications.add(by=notifications)
        self._deliveries.add(by=deliveries)
        self._thinned.add(by=thinned)

    def deadline(self, kind: str) -> None:
        """A subscriber got a notice about a missed deadline, or one that is met again."""
        self._deadlines.add(kind)

    def operation(self, interface: str) -> None:
        self._operations.add(interface)

    def objective(self, counts: Mapping[str, int]) -> None:
        """Add deliveries that count for the service level objective, by result."""
        for result, count in counts.items():
            self._slo.add(result, by=count)
        with self._lock:
            self._burns.add(counts, self._clock())

    def recorded(self, rows: pa.Table) -> None:
        """Add recorded attempts: rows of `dispatch.tables.ATTEMPTS`."""
        if not rows.num_rows:
            return
        by_outcome = rows.group_by(["state", "error", "lapsed"], use_threads=False).aggregate([([], "count_all")])
        for row in by_outcome.to_pylist():
            if row["error"] != "purged":  # a dead letter that was counted when it was given up
                self._attempts.add("lapsed" if row["lapsed"] else row["state"], row["error"], by=row["count_all"])
        self._count_latencies(rows)
        self._count_pushes(rows)

    def _burn_rates(self) -> dict[str, float]:
        with self._lock:
            shares = self._burns.shares(self._clock())
        allowed = 1 - self.slo_target
        return {name: round(share / allowed, 3) if allowed > 0 else 0.0 for name, share in shares.items()}

    def slowest(self, count: int = 10) -> list[EndpointFigures]:
        """The endpoints with the longest average push over the last minutes."""
        with self._lock:
            return self._endpoints.slowest(count, self._clock())

    def endpoints(self) -> list[EndpointFigures]:
        """The endpoints of the last minutes, at most MAX_ENDPOINTS, those with the most pushes first."""
        with self._lock:
            seen = self._endpoints.together(self._clock())
        return nlargest(MAX_ENDPOINTS, seen.values(), key=lambda one: one.pushes)

    def failing(self) -> tuple[list[FailingEndpoint], int]:
        """The endpoints with failures, at most MAX_ENDPOINTS, worst first; and the number of all of them."""
        with self._lock:
            seen = self._endpoints.together(self._clock())
        health = self.sources.health()
        names = {each for each, one in seen.items() if one.failed} | {
            each for each, one in health.items() if one.failures
        }
        found = [
            FailingEndpoint(seen.get(each) or EndpointFigures(each, 0, 0, 0.0, 0.0), health.get(each, HEALTHY))
            for each in names
        ]
        return nsmallest(MAX_ENDPOINTS, found, key=_worst_first), len(found)

    def _count_latencies(self, rows: pa.Table) -> None:
        delivered = rows.filter(pc.equal(rows["state"], "delivered"))
        waited = pc.subtract(delivered["started_at"].cast(pa.int64()), delivered["accepted_at"].cast(pa.int64()))
        # The gateway's clock may be ahead of this one: a sum that falls is a restart for Prometheus.
        seconds = np.maximum(waited.to_numpy(), 0) / 1e6 + delivered["duration_ms"].to_numpy() / 1e3
        self._delivery_seconds.observe_all(_by_bucket(seconds, _DELIVERY_BUCKETS), float(seconds.sum()))

    def _count_pushes(self, rows: pa.Table) -> None:
        sent = rows.filter(pc.not_equal(rows["push"], ""))
        if not sent.num_rows:
            return
        # One push may have many notifications; all of its rows have the same values about it.
        taken = pc.or_(pc.equal(sent["state"], "delivered"), pc.equal(sent["error"], "later"))
        first = sent.append_column("failed", pc.invert(taken)).group_by("push", use_threads=False)
        pushes = first.aggregate(
            [(name, "first") for name in ("endpoint", "duration_ms", "reused", "failed", "request_bytes", "error")]
        )
        seconds = pushes["duration_ms_first"].to_numpy() / 1e3
        self._push_seconds.observe_all(_by_bucket(seconds, BUCKETS), float(seconds.sum()))
        reused = pc.sum(pushes["reused_first"]).as_py()
        self._connections.add("reused", by=reused)
        self._connections.add("new", by=pushes.num_rows - reused)
        self._bytes.add(by=pc.sum(pushes["request_bytes_first"]).as_py())
        for row in pushes["error_first"].value_counts().to_pylist():
            self._pushes.add(row["values"], by=row["counts"])
        places = pa.array(np.searchsorted(np.asarray(BUCKETS), seconds, side="left"))
        counted = pushes.append_column("bucket", places).group_by(["endpoint_first", "bucket"], use_threads=False)
        buckets: dict[str, list[int]] = {}
        for row in counted.aggregate([([], "count_all")]).to_pylist():
            buckets.setdefault(row["endpoint_first"], [0] * (len(BUCKETS) + 1))[row["bucket"]] = row["count_all"]
        by_endpoint = pushes.group_by("endpoint_first", use_threads=False).aggregate(
            [("failed_first", "sum"), ("duration_ms_first", "sum"), ("duration_ms_first", "max"), ([], "count_all")]
        )
        figures = [
            EndpointFigures(
                row["endpoint_first"],
                row["count_all"],
                row["failed_first_sum"],
                row["duration_ms_first_sum"] / 1e3,
                row["duration_ms_first_max"] / 1e3,
                tuple(buckets[row["endpoint_first"]]),
            )
            for row in by_endpoint.to_pylist()
        ]
        with self._lock:
            self._endpoints.add(figures, self._clock())

    def _declare_batches(self, registry: Registry) -> None:
        self._batches = registry.counter("arborcast_dispatch_batches_total", "Completed batches.")
        self._failed_batches = registry.counter(
            "arborcast_dispatch_failed_batches_total", "Repeated batches or real-time runs."
        )
        self._hung_workers = registry.counter(
            "arborcast_dispatch_hung_workers_total", "Hanging Python workers that were killed, on the job's host."
        )
        self._notifications = registry.counter("arborcast_dispatch_notifications_total", "Matched notifications.")
        registry.counted(
            "arborcast_dispatch_system_notices_total", "The engine's own notifications.", lambda: self.sources.notices()
        )
        self._deliveries = registry.counter("arborcast_dispatch_deliveries_total", "One for each subscription.")
        self._thinned = registry.counter(
            "arborcast_thinned_total", "Omitted by minimum intervals, one for each subscription."
        )
        self._deadlines = registry.counter(
            "arborcast_deadlines_total", "Notices: deadline-missed, deadline-met.", ("kind",)
        )
        self._operations = registry.counter(
            "arborcast_operations_total", "Rows of the table operations.", ("interface",)
        )
        self._stage_seconds = registry.histogram(
            "arborcast_dispatch_batch_seconds",
            "Stages: control (reading the log), view (for workers), job (matching and pushing), feedback (of workers).",
            ("stage",),
            _BATCH_BUCKETS,
        )
        registry.gauge(
            "arborcast_dispatch_batch_under_way_seconds",
            "Age of the current batch; 0: none.",
            lambda: self._clock() - began if (began := self._batch_began) is not None else 0.0,
        )
        registry.gauges(
            "arborcast_dispatch_spark_stage_seconds",
            "Spark's stages of the last batch.",
            ("query", "stage"),
            lambda: {
                (query, stage): seconds
                for query, progress in self.sources.progress().items()
                for stage, seconds in progress.stages.items()
            },
        )
        registry.gauges_by(
            "arborcast_dispatch_last_batch_rows",
            "Rows of a query's last batch.",
            "query",
            lambda: {query: progress.rows for query, progress in self.sources.progress().items()},
        )
        registry.gauges_by(
            "arborcast_dispatch_lag_records",
            "Unsettled records of a query's log.",
            "query",
            lambda: {query: lag.records for query, lag in self.sources.lag().items()},
        )
        registry.gauges_by(
            "arborcast_dispatch_lag_seconds",
            "Age of the oldest of these.",
            "query",
            lambda: {query: lag.seconds for query, lag in self.sources.lag().items()},
        )
        behind = "Duration of failures or backlog, of other tables and upkeeps."
        registry.gauges_by("arborcast_tables_behind_seconds", behind, "work", lambda: self.sources.behind())
        registry.gauges_by(
            "arborcast_dispatch_mode",
            "1 for the execution mode in use.",
            "mode",
            lambda: {name: float(name == self.mode()) for name in ("realtime", "batch")},
        )

    def _declare_deliveries(self, registry: Registry) -> None:
        self._attempts = registry.counter(
            "arborcast_attempts_total",
            "Recorded attempts, one per notification and subscription; lapsed: expired without a dead letter.",
            ("state", "error"),
        )
        letters = product(("dead", "expired"), filter(None, get_args(ErrorClass)))
        self._attempts.begin(*letters, ("dropped", "resources"))
        self._delivery_seconds = registry.histogram(
            "arborcast_delivery_seconds", "From acceptance to the answer that delivered.", buckets=_DELIVERY_BUCKETS
        )
        self._push_seconds = registry.histogram("arborcast_push_seconds", "Duration of pushes.")
        self._pushes = registry.counter(
            "arborcast_pushes_total", "By class of failure, empty for success; later: with a later result.", ("error",)
        )
        registry.gauges_by(
            "arborcast_pushes_in_flight",
            "batch (first attempts, on the job's host) and redelivery. Everywhere: rate(arborcast_push_seconds_sum).",
            "by",
            lambda: self.sources.pushes(),
        )
        self._connections = registry.counter("arborcast_push_connections_total", "new or reused.", ("connection",))
        self._bytes = registry.counter("arborcast_push_bytes_total", "Bytes of request bodies.")
        waiting = "parked (all), due (subscriptions that wait for room)."
        registry.gauges_by("arborcast_deliveries_waiting", waiting, "kind", lambda: self.sources.waiting())
        registry.counted(
            "arborcast_redelivery_failures_total",
            "Failures; it starts again.",
            lambda: self.sources.redelivery_failures(),
        )
        self._slo = registry.counter(
            "arborcast_slo_deliveries_total", "in_time, late, lost, or receiver (its fault; not counted).", ("result",)
        )
        self._slo.begin(("in_time",), ("late",), ("lost",), ("receiver",))
        registry.gauge("arborcast_slo_target", "slo.target.", lambda: self.slo_target)
        burn = "Share of late and lost deliveries since the start of the job, by the allowed share."
        registry.gauges_by("arborcast_slo_burn_rate", burn, "window", self._burn_rates)
        registry.gauge("arborcast_erasures_open", "Erasures that are not done.", lambda: self.sources.erasures())
        registry.counted("arborcast_erased_total", "Removed copies of payloads.", lambda: self.sources.erased())
        breakers = "Failing endpoints."
        registry.gauges_by("arborcast_endpoint_breakers", breakers, "state", lambda: self.sources.breakers())

    def _declare_queues(self, registry: Registry) -> None:
        registry.gauges(
            "arborcast_queue_requests",
            "waiting or executing.",
            ("queue", "state"),
            lambda: {
                (each.queue, state): float(count)
                for each in self._queues()
                for state, count in (("waiting", each.waiting), ("executing", each.executing))
            },
        )
        registry.gauges(
            "arborcast_queue_servers",
            "idle, busy, or sick (only probed).",
            ("queue", "state"),
            lambda: {
                (each.queue, state): float(count)
                for each in self._queues()
                for state, count in (("idle", each.idle), ("busy", len(each.busy)), ("sick", each.sick))
            },
        )
        registry.gauges_by(
            "arborcast_queue_oldest_seconds",
            "Age of the oldest waiting request; 0: none.",
            "queue",
            lambda: {
                each.queue: max(0.0, self._clock() - each.oldest_ms / 1000) if each.oldest_ms else 0.0
                for each in self._queues()
            },
        )
        registry.gauges(
            "arborcast_queue_server_busy_seconds",
            "Age of the oldest request in progress at a worker.",
            ("queue", "server"),
            lambda: {
                (each.queue, server): max(0.0, self._clock() - since_ms / 1000)
                for each in self._queues()
                for server, since_ms in each.busy[:_MOST_SERVERS]
            },
        )

    def _queues(self) -> Sequence[QueueFigures]:
        """The queues with labels: at most `_MOST_QUEUES`, those with the most waiting requests first."""
        return sorted(self.sources.queues(), key=lambda each: each.waiting, reverse=True)[:_MOST_QUEUES]

    def _declare_view(self, registry: Registry) -> None:
        registry.gauge(
            "arborcast_view_base_subscriptions",
            "Subscriptions in the base of workers' views.",
            lambda: self.sources.view().base,
        )
        registry.gauge("arborcast_view_base_bytes", "Its size.", lambda: self.sources.view().base_bytes)
        registry.gauge(
            "arborcast_view_base_age_seconds",
            "Its age.",
            lambda: self._clock() - made if (made := self.sources.view().made_at) else 0.0,
        )
        registry.gauge(
            "arborcast_view_overlay_entries", "Changes since that base.", lambda: self.sources.view().overlay
        )
        registry.gauge(
            "arborcast_view_overlay_bytes", "Size of their broadcast.", lambda: self.sources.view().overlay_bytes
        )


def _worst_first(one: FailingEndpoint) -> tuple[bool, float, int, str]:
    """Sort key: an open breaker, then the share of failed pushes, then their number."""
    figures = one.figures
    share = figures.failed / figures.pushes if figures.pushes else 1.0
    return one.health.breaker == "closed", -share, -figures.failed, figures.endpoint


def _by_bucket(seconds: np.ndarray[tuple[int], np.dtype[np.float64]], bounds: tuple[float, ...]) -> list[int]:
    places = np.searchsorted(np.asarray(bounds), seconds, side="left")
    return [int(count) for count in np.bincount(places, minlength=len(bounds) + 1)]
