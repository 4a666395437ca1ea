"""What needs attention, from samples and endpoints."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
import yaml

from arborcast.engine.monitoring.attention import STALE_S, THRESHOLDS, concerns, endpoint_health, tiles
from arborcast.engine.monitoring.samples import NO_BOUND, MetricsSample, ProcessFigures, Scrape, sample_of
from arborcast.engine.monitoring.watching import EngineView
from tests.support.gateway_process import ROOT

NOW = 1_000_000.0

HEALTHY = [
    MetricsSample(at=NOW - 60 + 5 * number, parts={"kafka": True}, gear="realtime", attempts={"delivered": number})
    for number in range(13)
]


def last_as(**changes: Any) -> EngineView:
    """A view in which the last sample is another one."""
    return EngineView([*HEALTHY[:-1], msgspec.structs.replace(HEALTHY[-1], **changes)], failing=[])


def endpoint(name: str = "http://e/", pushes: int = 10, failed: int = 10, **more: Any) -> dict[str, Any]:
    return {"endpoint": name, "pushes": pushes, "failed": failed, "mean_s": 0.02, "longest": 0.03, **more}


@pytest.mark.parametrize("rule", sorted(THRESHOLDS))
def test_the_thresholds_are_those_of_the_alert_rules(rule: str) -> None:
    document = yaml.safe_load((ROOT / "docs" / "monitoring" / "alerts.yml").read_text())
    (found,) = [each for group in document["groups"] for each in group["rules"] if each["alert"] == rule]
    numbers = re.findall(r"> ([0-9.]+)(?![0-9.])", found["expr"])
    assert THRESHOLDS[rule] in map(float, numbers)


METRICS = {
    "ArborcastGatewayNotReady": "arborcast_gateway_ready 0",
    "ArborcastJobGone": "arborcast_gateway_ready 1",
    "ArborcastPartDown": 'arborcast_part_ready{part="kafka"} 0',
    "ArborcastPartRestarts": 'arborcast_part_restarts_total{part="kafka"} 4',
    "ArborcastPartHangs": 'arborcast_part_hangs_total{part="kafka"} 1',
    "ArborcastWorkersHang": "arborcast_dispatch_hung_workers_total 1",
    "ArborcastRefusesForKafka": 'arborcast_gateway_refused_total{reason="InfrastructureError"} 600',
    "ArborcastDefects": 'arborcast_gateway_refused_total{reason="Defect"} 1',
    "ArborcastAppendSlow": """arborcast_gateway_append_seconds_bucket{le="1"} 0
arborcast_gateway_append_seconds_bucket{le="2"} 9
arborcast_gateway_append_seconds_bucket{le="+Inf"} 9""",
    "ArborcastDispatchLag": 'arborcast_dispatch_lag_seconds{query="push"} 31',
    "ArborcastRecordLag": 'arborcast_dispatch_lag_seconds{query="record"} 301',
    "ArborcastBatchStuck": "arborcast_dispatch_batch_under_way_seconds 121",
    "ArborcastBatchesFail": "arborcast_dispatch_failed_batches_total 4",
    "ArborcastDeliverySlow": """arborcast_delivery_seconds_bucket{le="30"} 0
arborcast_delivery_seconds_bucket{le="60"} 9
arborcast_delivery_seconds_bucket{le="+Inf"} 9""",
    "ArborcastDeadLetters": 'arborcast_attempts_total{state="dead"} 1',
    "ArborcastParkedGrows": 'arborcast_deliveries_waiting{kind="parked"} 10001',
    "ArborcastTooMuchWaits": 'arborcast_attempts_total{state="dropped",error="resources"} 1',
    "ArborcastSubscriptionsSuspended": "arborcast_suspended_subscriptions 1",
    "ArborcastPullPointsDrop": "arborcast_pull_dropped_messages 1",
    "ArborcastSloBurnsFast": """arborcast_slo_burn_rate{window="5m"} 15
arborcast_slo_burn_rate{window="1h"} 15
arborcast_slo_burn_rate{window="30m"} 7
arborcast_slo_burn_rate{window="6h"} 7""",
    "ArborcastSloBurns": """arborcast_slo_burn_rate{window="30m"} 7
arborcast_slo_burn_rate{window="6h"} 7""",
    "ArborcastDirectoryAway": "arborcast_directory_connected 0",
    "ArborcastDescriptorsGrow": """arborcast_process_cpu_seconds_total{process="a"} 1
arborcast_process_descriptors{process="a"} 10001""",
}
"""For each alert rule, metrics with which it fires."""

ELSEWHERE = {"ArborcastErasureOpen"}
"""The console finds these in the control log."""


def test_the_metrics_of_each_alert_rule_are_a_concern() -> None:
    document = yaml.safe_load((ROOT / "docs" / "monitoring" / "alerts.yml").read_text())
    rules = [each["alert"] for group in document["groups"] for each in group["rules"]]
    assert sorted(rules) == sorted(ELSEWHERE | METRICS.keys())
    job = "arborcast_dispatch_batches_total 1\n"
    for rule in METRICS:
        before = sample_of(NOW - 60, Scrape.of(job))
        after = sample_of(NOW, Scrape.of(METRICS[rule] + "\n" + job * (rule != "ArborcastJobGone")))
        assert len(concerns(EngineView([before, after], failing=[]), NOW)) == 1, rule


def test_a_budget_that_is_not_spent_any_more_is_no_concern() -> None:
    ended = last_as(states={"burn 1h": 20.0, "burn 5m": 0.0, "burn 6h": 8.0, "burn 30m": 5.0})
    assert concerns(ended, NOW) == []


def beyond(seconds: float) -> tuple[tuple[float, float], ...]:
    """A histogram in which a hundred took this long."""
    return ((seconds / 2, 0.0), (seconds, 100.0), (NO_BOUND, 100.0))


@pytest.mark.parametrize(
    ("view", "level", "about", "text"),
    [
        (last_as(parts={"kafka": False}), "bad", "engine", "The part kafka is not ready"),
        (last_as(lag_seconds=31.0), "bad", "lag", "Dispatch lag: the oldest notification waits 31.0 s"),
        (last_as(refused={"InfrastructureError": 600.0}), "bad", "kafka", "Publishers are refused because"),
        (last_as(append=beyond(2.0)), "warn", "kafka", "Kafka acknowledges slowly: p99 2.0 s"),
        (last_as(delivery=beyond(60.0)), "warn", "latency", "Deliveries are slow: p99 59.7 s"),
        (last_as(suspended=2.0), "warn", "suspended", "2 subscriptions suspended"),
        (last_as(attempts={"delivered": 12.0, "dead": 3.0}), "warn", "dead", "3 new dead letters in 10 minutes"),
        (last_as(errors={"resources": 1.0}), "warn", "waiting", "1 delivery dropped"),
        (last_as(waiting={"parked": 10_001.0}), "warn", "waiting", "10.0 k deliveries wait for a retry"),
        (
            last_as(processes={"gateway": ProcessFigures(0, 0, 0, 10_001)}),
            "warn",
            "engine",
            "gateway has 10.0 k open files",
        ),
        (last_as(states={"gateway": 0.0}), "bad", "engine", "A gateway is not ready"),
        (last_as(states={"job": 0.0}), "bad", "engine", "No dispatch job responds"),
        (last_as(states={"batch": 121.0}), "bad", "lag", "A batch does not end: 2.0 min so far"),
        (last_as(events={"failed batch": 4.0}), "bad", "engine", "4 batches failed in 10 minutes"),
        (last_as(states={"record lag": 301.0}), "warn", "engine", "The tables are 5.0 min behind"),
        (last_as(events={"restart": 4.0}), "warn", "engine", "4 restarts of parts"),
        (last_as(events={"hang": 1.0}), "warn", "engine", "1 process hung and were killed"),
        (last_as(events={"hung worker": 2.0}), "warn", "engine", "2 processes hung and were killed"),
        (last_as(refused={"Defect": 2.0}), "warn", "engine", "2 requests met an internal error"),
        (last_as(states={"directory": 0.0}), "warn", "directory", "The directory of the topics does not respond"),
        (last_as(states={"pull dropped": 5.0}), "warn", "pull points", "Full pull points dropped 5 messages"),
        (
            last_as(states={"burn 1h": 20.0, "burn 5m": 15.0}),
            "bad",
            "objective",
            "Deliveries are late or lost: in 1h 15 times as many as the objective allows",
        ),
        (EngineView(HEALTHY, failing=[endpoint()], failing_count=1), "bad", "endpoints", "1 endpoint failing"),
        (
            EngineView(HEALTHY, failing=[endpoint(failed=1)], failing_count=1),
            "warn",
            "degraded",
            "1 endpoint with some failures",
        ),
        (EngineView(HEALTHY, problem="no answer"), "bad", "engine", "The engine's state is unknown: no answer"),
    ],
)
def test_each_condition_is_a_concern(view: EngineView, level: str, about: str, text: str) -> None:
    (found,) = concerns(view, NOW)
    assert (found.level, found.about) == (level, about)
    assert found.text.startswith(text)


def test_old_figures_are_no_figures() -> None:
    assert concerns(EngineView(HEALTHY, failing=[]), NOW + STALE_S) == []
    (found,) = concerns(EngineView(HEALTHY, failing=[]), NOW + STALE_S + 1)
    assert (found.level, found.about) == ("bad", "engine")


@pytest.mark.parametrize(
    ("one", "word"),
    [
        (endpoint(failed=0), "healthy"),
        (endpoint(failed=1), "degraded"),
        (endpoint(), "failing"),
        (endpoint(failed=0, breaker="open"), "failing"),
        (endpoint(failed=0, breaker="half-open"), "failing"),
        (endpoint(pushes=0, failed=0, breaker="closed", failures=2), "degraded"),
    ],
)
def test_the_health_of_an_endpoint(one: dict[str, Any], word: str) -> None:
    assert endpoint_health(one) == word


def test_tiles_have_the_level_of_their_threshold() -> None:
    shown = {each.name: each for each in tiles(last_as(lag_seconds=31.0).samples)}
    assert (shown["lag"].value, shown["lag"].level) == ("31.0 s", "bad")
    assert (shown["delivered"].value, shown["delivered"].level) == ("0.2", "good")
    assert tiles([]) == []


def test_a_look_without_the_job_is_no_growth_of_its_counters() -> None:
    gap = [*HEALTHY[:5], MetricsSample(at=NOW - 35, parts={"kafka": True}), *HEALTHY[6:]]
    many = [msgspec.structs.replace(each, attempts={"dead": 2_800.0} if each.attempts else {}) for each in gap]
    assert concerns(EngineView(many, failing=[]), NOW) == []
