from __future__ import annotations

import pyarrow as pa
import pytest

from arborcast.dispatch.delivery.health import Health
from arborcast.dispatch.logs import attempts
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.dispatch.monitoring import metrics as endpoints_seen
from arborcast.dispatch.monitoring.metrics import EndpointFigures, EndpointsSeen, JobMetrics
from arborcast.dispatch.monitoring.sources import Lag, QueryProgress, Sources, ViewSize
from arborcast.dispatch.queues.servers import QueueFigures
from arborcast.dispatch.tables import delta_table
from arborcast.engine.monitoring.samples import Scrape, quantile
from arborcast.topic_model.topics import TopicPath
from tests.support import table_rows


def attempt(push: str, state: str = "delivered", error: str = "", **more: object) -> Attempt:
    facts = {"push": push, "error": error, "duration_ms": 20.0, "request_bytes": 700, **more}
    return table_rows.attempt("n", "one", state, 40, **facts)


def rows_of(*made: Attempt) -> pa.Table:
    return delta_table.rows_of([attempts.encode(*made)])


def assert_shown(metrics: JobMetrics, expected: str) -> None:
    missing = {line.strip() for line in expected.strip().splitlines()} - {*metrics.registry.text().splitlines()}
    assert not missing


def test_a_purge_is_no_new_dead_letter() -> None:
    metrics = JobMetrics()
    metrics.recorded(rows_of(attempt("p1", "dead", "timeout"), attempt("", "dead", "purged")))
    counts = [line for line in metrics.registry.text().splitlines() if "arborcast_attempts_total{" in line]
    assert sum(float(line.rpartition(" ")[2]) for line in counts) == 1


def test_deliveries_that_expire_with_and_without_a_dead_letter_are_apart() -> None:
    metrics = JobMetrics()
    past_lifespan, past_validity = attempt("p1", "expired", "connect"), attempt("p2", "expired", "connect", lapsed=True)
    metrics.recorded(rows_of(past_lifespan, past_validity, attempt("", "expired", "lifespan", lapsed=True)))
    assert_shown(
        metrics,
        """
        arborcast_attempts_total{state="expired",error="connect"} 1
        arborcast_attempts_total{state="expired",error="lifespan"} 0
        arborcast_attempts_total{state="lapsed",error="connect"} 1
        arborcast_attempts_total{state="lapsed",error="lifespan"} 1
        """,
    )


def test_attempts_count_by_notification_pushes_once() -> None:
    metrics = JobMetrics()
    pushed = [attempt("p1"), attempt("p1"), attempt("p2", reused=True), attempt("p3", "parked", "timeout")]
    metrics.recorded(rows_of(*pushed, attempt("", "dead", "skipped")))
    assert_shown(
        metrics,
        """
        arborcast_attempts_total{state="delivered",error=""} 3
        arborcast_attempts_total{state="parked",error="timeout"} 1
        arborcast_attempts_total{state="dead",error="skipped"} 1
        arborcast_push_connections_total{connection="new"} 2
        arborcast_push_connections_total{connection="reused"} 1
        arborcast_push_seconds_count 3
        arborcast_push_bytes_total 2100
        arborcast_pushes_total{error=""} 2
        arborcast_pushes_total{error="timeout"} 1
        arborcast_delivery_seconds_count 3
        arborcast_delivery_seconds_bucket{le="0.05"} 0
        arborcast_delivery_seconds_bucket{le="0.075"} 3
        """,
    )  # 40 ms before the push, 20 ms until its answer


def test_a_gateway_s_clock_ahead_makes_no_sum_smaller() -> None:
    metrics = JobMetrics()
    metrics.recorded(rows_of(attempt("p1")))
    metrics.recorded(rows_of(attempt("p2", accepted_ms=table_rows.NOON_MS + 1_000)))
    assert Scrape.of(metrics.registry.text()).sum("arborcast_delivery_seconds_sum") == pytest.approx(0.08)


def test_a_delivery_after_retries_is_shown_with_its_magnitude() -> None:
    metrics = JobMetrics()
    metrics.recorded(rows_of(attempt("p1", accepted_ms=table_rows.NOON_MS - 65_000)))
    median = quantile(Scrape.of(metrics.registry.text()).buckets("arborcast_delivery_seconds"), 0.5)
    assert median is not None
    assert 60 < median < 2 * 65


def test_slow_endpoints_are_listed_and_no_label() -> None:
    metrics = JobMetrics(clock=lambda: 1_000.0)
    metrics.recorded(
        rows_of(
            attempt("p1", endpoint="http://slow/", duration_ms=900.0),
            attempt("p2", endpoint="http://slow/", duration_ms=100.0, state="parked", error="timeout"),
            attempt("p3", endpoint="http://quick/", state="parked", error="later"),
            attempt("", endpoint="http://quick/"),
        )
    )
    slow, quick = metrics.slowest()
    assert (slow.endpoint, slow.pushes, slow.failed, slow.longest) == ("http://slow/", 2, 1, 0.9)
    assert slow.seconds == pytest.approx(1.0)
    assert quick.endpoint == "http://quick/"
    assert [each.endpoint for each in metrics.endpoints()] == ["http://slow/", "http://quick/"]
    assert "http://" not in metrics.registry.text()


def test_percentiles_cover_all_pushes_of_an_endpoint() -> None:
    metrics = JobMetrics(clock=lambda: 1_000.0)
    for first in (0, 100):
        metrics.recorded(rows_of(*(attempt(f"p{first + number}", duration_ms=12.0) for number in range(100))))
    (one,) = metrics.endpoints()
    assert (one.pushes, one.p99_s) == (200, 0.012)
    metrics.recorded(rows_of(*(attempt(f"s{number}", duration_ms=700.0) for number in range(3))))
    (one,) = metrics.endpoints()
    assert (one.pushes, one.p99_s) == (203, 0.7)
    assert EndpointFigures("http://none/", 0, 0, 0.0, 0.0).p99_s == 0.0


def test_endpoints_that_fail_fast_are_listed_and_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Endpoints that refuse at once are not among the slowest."""
    metrics = JobMetrics(clock=lambda: 1_000.0)
    slow = [attempt(f"s{number}", endpoint=f"http://slow{number}/", duration_ms=5_000.0) for number in range(30)]
    fast = [
        attempt(f"f{number}", "parked", "connect", endpoint=f"http://down{number}/", duration_ms=0.2)
        for number in range(40)
    ]
    metrics.recorded(rows_of(*slow, *fast))
    sick = Health(breaker="open", failures=7, failing_since_ms=5, probe_at_ms=9)
    metrics.sources.health = lambda: {"http://idle/": sick, "http://slow1/": Health(degraded=True)}
    found, count = metrics.failing()
    assert count == len(found) == 41
    assert found[0].figures == EndpointFigures("http://idle/", 0, 0, 0.0, 0.0)
    assert found[0].health == sick
    assert {each.figures.endpoint for each in found[1:]} == {f"http://down{number}/" for number in range(40)}

    monkeypatch.setattr(endpoints_seen, "MAX_ENDPOINTS", 4)
    metrics.sources.health = lambda: (
        {f"http://{number}/": Health(failures=1) for number in range(9)} | {"http://open/": Health("open", 9)}
    )
    found, count = metrics.failing()
    assert (len(found), count) == (4, 50)
    assert found[0].figures.endpoint == "http://open/"


def test_stages_of_a_batch_and_failed_batches() -> None:
    metrics = JobMetrics()
    with metrics.batch() as stages:
        stages.over("view", ("control", 0.0))
        stages.over("job")
        metrics.dispatched(3, 12, thinned=4)
    with pytest.raises(ValueError, match="lost"), metrics.batch():
        raise ValueError("lost")
    metrics.query_failed()
    assert_shown(
        metrics,
        """
        arborcast_dispatch_batches_total 1
        arborcast_dispatch_notifications_total 3
        arborcast_dispatch_deliveries_total 12
        arborcast_thinned_total 4
        arborcast_dispatch_failed_batches_total 1
        arborcast_dispatch_batch_seconds_count{stage="view"} 1
        arborcast_dispatch_batch_seconds_count{stage="control"} 1
        arborcast_dispatch_batch_seconds_count{stage="job"} 1
        arborcast_dispatch_batch_under_way_seconds 0.0
        """,
    )


def test_figures_of_other_sources() -> None:
    metrics = JobMetrics(clock=lambda: 1_060.0)
    metrics.sources = Sources(
        lag=lambda: {"push": Lag(3, 1.5)},
        behind=lambda: {"dead": 20.0},
        progress=lambda: {"push": QueryProgress(12, {}, {"addBatch": 0.25})},
        view=lambda: ViewSize(100, 1_000.0, 7, 12_345, 678),
        waiting=lambda: {"parked": 4, "due": 1},
        redelivery_failures=lambda: 6.0,
        breakers=lambda: {"open": 2},
        pushes=lambda: {"batch": 40, "redelivery": 2},
        notices=lambda: 11.0,
        queues=lambda: (QueueFigures(TopicPath("jobs"), 7, 2, 1_050_000, 3, 1, (("s1", 1_055_000),)),),
    )
    assert_shown(
        metrics,
        """
        arborcast_dispatch_lag_records{query="push"} 3
        arborcast_dispatch_lag_seconds{query="push"} 1.5
        arborcast_tables_behind_seconds{work="dead"} 20.0
        arborcast_dispatch_spark_stage_seconds{query="push",stage="addBatch"} 0.25
        arborcast_dispatch_last_batch_rows{query="push"} 12
        arborcast_deliveries_waiting{kind="parked"} 4
        arborcast_redelivery_failures_total 6.0
        arborcast_endpoint_breakers{state="open"} 2
        arborcast_view_base_subscriptions 100
        arborcast_view_base_bytes 12345
        arborcast_view_base_age_seconds 60.0
        arborcast_view_overlay_entries 7
        arborcast_view_overlay_bytes 678
        arborcast_pushes_in_flight{by="batch"} 40
        arborcast_pushes_in_flight{by="redelivery"} 2
        arborcast_dispatch_system_notices_total 11.0
        arborcast_queue_requests{queue="jobs",state="waiting"} 7.0
        arborcast_queue_requests{queue="jobs",state="executing"} 2.0
        arborcast_queue_servers{queue="jobs",state="idle"} 3.0
        arborcast_queue_servers{queue="jobs",state="busy"} 1.0
        arborcast_queue_servers{queue="jobs",state="sick"} 1.0
        arborcast_queue_oldest_seconds{queue="jobs"} 10.0
        arborcast_queue_server_busy_seconds{queue="jobs",server="s1"} 5.0
        """,
    )


def test_endpoints_expire_and_are_bounded() -> None:
    seen = EndpointsSeen()
    seen.add([EndpointFigures("http://old/", 1, 0, 5.0, 5.0)], now=1_000)
    assert [one.endpoint for one in seen.slowest(5, now=1_100)] == ["http://old/"]
    assert [one.endpoint for one in seen.slowest(5, now=1_400)] == ["http://old/"]
    assert seen.slowest(5, now=3_000) == []
    many = [EndpointFigures(f"http://{n}/", 1, 0, n / 1e3, n / 1e3) for n in range(3 * endpoints_seen.MAX_ENDPOINTS)]
    seen.add(many, now=3_000)
    assert len(seen._now) <= endpoints_seen.MAX_ENDPOINTS
    assert seen.slowest(1, now=3_000)[0].endpoint == many[-1].endpoint
    assert seen.slowest(1, now=1_000) == [], "the clock was put back"


def test_the_burn_rate() -> None:
    at = 1_000_000.0
    metrics = JobMetrics(clock=lambda: at)
    metrics.slo_target = 0.99

    def rates() -> list[float]:
        return [round(rate, 1) for rate in metrics._burn_rates().values()]

    assert rates() == [0.0, 0.0, 0.0, 0.0]
    metrics.objective({"in_time": 70, "late": 20, "lost": 10, "receiver": 500})
    assert rates() == [30.0, 30.0, 30.0, 30.0]
    at += 600
    metrics.objective({"in_time": 100})
    assert rates() == [0.0, 15.0, 15.0, 15.0]
    assert 'arborcast_slo_burn_rate{window="1h"} 15.0' in metrics.registry.text()
    at += 7 * 3_600
    assert rates() == [0.0, 0.0, 0.0, 0.0]
    for _ in range(1_000):
        at += 60
        metrics.objective({"in_time": 1})
    assert len(metrics._burns._minutes) <= 360
    metrics.slo_target = 1.0
    assert rates() == [0.0, 0.0, 0.0, 0.0]
