"""Concerns from samples and endpoints; alert rules and a dashboard with existing metrics."""

from __future__ import annotations

import json
import re
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
import yaml

from arborcast.cli import reference
from arborcast.cli.reference import DOCS
from arborcast.core.telemetry.metrics import Registry
from arborcast.dispatch.monitoring.metrics import JobMetrics
from arborcast.engine.gateway.metrics import declare_framed
from arborcast.engine.monitoring.attention import STALE_S, THRESHOLDS, concerns, endpoint_health, tiles
from arborcast.engine.monitoring.samples import MetricsSample, Scrape, sample_of
from arborcast.engine.monitoring.watching import EngineView
from arborcast.ingest.framed.server import FramedServer
from arborcast.ingest.framed.subscriptions import Counts
from arborcast.ingest.http.app import RequestMetrics

NOW = 1_000_000.0

HEALTHY = [
    MetricsSample(at=NOW - 60 + 5 * number, parts={"kafka": True}, mode="realtime", attempts={"delivered": number})
    for number in range(13)
]

PANELS = json.loads((DOCS / "monitoring" / "grafana-dashboard.json").read_text())["panels"]
(ALERTS,) = yaml.safe_load((DOCS / "monitoring" / "alerts.yml").read_text())["groups"]
RULES: dict[str, str] = {each["alert"]: each["expr"] for each in ALERTS["rules"]}
"""The expressions of the alert rules."""


def last_as(**changes: Any) -> list[MetricsSample]:
    """Samples with this last one."""
    return [*HEALTHY[:-1], msgspec.structs.replace(HEALTHY[-1], **changes)]


def found(samples: list[MetricsSample], at: float = NOW, **view: Any) -> list[str]:
    """The concerns of a view."""
    view = {"failing": [], **view}
    return [f"{each.level} {each.about}: {each.text}" for each in concerns(EngineView(samples, **view), at)]


def endpoint(pushes: int = 10, failed: int = 10, **more: Any) -> dict[str, Any]:
    return {"endpoint": "http://e/", "pushes": pushes, "failed": failed, "mean_s": 0.02, "longest": 0.03, **more}


def slow(name: str, low: float, high: float) -> str:
    """A histogram with nine values in this range."""
    return "\n".join(f'{name}_bucket{{le="{le}"}} {count}' for le, count in ((low, 0), (high, 9), ("+Inf", 9)))


def burning(*windows: str) -> str:
    return "\n".join(f'slo_burn_rate{{window="{each}"}} 15' for each in windows)


METRICS = {
    "GatewayNotReady": ("gateway_ready 0", "bad engine: A gateway is not ready"),
    "JobDown": ("gateway_ready 1", "bad engine: No dispatch job responds"),
    "PartDown": ('part_ready{part="kafka"} 0', "bad engine: The part kafka is not ready"),
    "PartRestarts": ('part_restarts_total{part="kafka"} 4', "warn engine: 4 restarts of parts"),
    "PartHangs": ('part_hangs_total{part="kafka"} 1', "warn engine: 1 process hung and were killed"),
    "WorkersHang": ("dispatch_hung_workers_total 2", "warn engine: 2 processes hung and were killed"),
    "DiskFull": ("disk_free_bytes 600000000", "bad engine: The disk of the data directory is nearly full: 600 MB free"),
    "RefusesForKafka": (
        'gateway_refused_total{reason="InfrastructureError"} 600',
        "bad kafka: Publishers are refused because",
    ),
    "Defects": (
        'gateway_refused_total{reason="Defect"} 1\nframed_refused_total{reason="Defect"} 2',
        "warn engine: 3 requests met an internal error",
    ),
    "RequestMemory": ("gateway_inflight_refused_total 2", "warn engine: 2 requests got 503 for lack of memory"),
    "AppendSlow": (slow("gateway_append_seconds", 1, 2), "warn kafka: Kafka acknowledges slowly: p99 2.0 s"),
    "DispatchLag": (
        'dispatch_lag_seconds{query="push"} 31',
        "bad lag: Dispatch lag: the oldest notification waits 31.0 s",
    ),
    "RecordLag": (
        'dispatch_lag_seconds{query="record"} 3\ntables_behind_seconds{work="dead"} 301',
        "warn engine: Tables or their upkeep are 5.0 min behind",
    ),
    "BatchStuck": ("dispatch_batch_under_way_seconds 121", "bad lag: A batch does not end: 2.0 min so far"),
    "BatchesFail": ("dispatch_failed_batches_total 4", "bad engine: 4 batches or runs failed in 10 minutes"),
    "RedeliveryFails": ("redelivery_failures_total 4", "bad waiting: The redelivery failed 4 times in 10 minutes"),
    "DeliverySlow": (slow("delivery_seconds", 30, 60), "warn latency: Deliveries are slow: p99 59.7 s"),
    "DeadLetters": (
        'attempts_total{state="dead"} 2\nattempts_total{state="expired"} 1\nattempts_total{state="lapsed"} 9',
        "warn dead: 3 new dead letters in 10 minutes",
    ),
    "ParkedGrows": ('deliveries_waiting{kind="parked"} 10001', "warn waiting: 10.0 k deliveries wait for a retry"),
    "TooMuchWaits": ('attempts_total{state="dropped",error="resources"} 1', "warn waiting: 1 delivery dropped"),
    "SubscriptionsSuspended": ("suspended_subscriptions 2", "warn suspended: 2 subscriptions suspended"),
    "PullPointsDrop": (
        'pull_dropped_messages_total{worker="0"} 5\npull_dropped_messages_total{worker="1"} 4',
        "warn pull points: Full pull points dropped 5 messages",
    ),
    "SloBurnsFast": (
        burning("5m", "1h", "30m", "6h"),
        "bad objective: Deliveries are late or lost: in 1h 15 times as many as the objective allows",
    ),
    "SloBurns": (burning("30m", "6h"), "warn objective: Deliveries are late or lost"),
    "DirectoryUnavailable": ("directory_connected 0", "warn directory: The directory of the topics does not respond"),
    "MqttDisconnected": (
        "gateway_lease_held 1\nmqtt_connected 0",
        "warn engine: The MQTT bridge has no session at the broker",
    ),
    "DescriptorsGrow": (
        'process_cpu_seconds_total{process="a"} 1\nprocess_descriptors{process="a"} 10001',
        "warn engine: a has 10.0 k open files",
    ),
}
"""For each alert rule, metrics (without `arborcast_`) with which it fires, and the resulting concern."""


@pytest.mark.parametrize("rule", METRICS)
def test_metrics_of_an_alert_are_a_concern(rule: str) -> None:
    metrics, concern = METRICS[rule]
    metrics = re.sub("^", "arborcast_", metrics, flags=re.MULTILINE)
    job = "arborcast_dispatch_batches_total 1\n"
    before = sample_of(NOW - 60, Scrape.of(job))
    after = sample_of(NOW, Scrape.of(metrics + "\n" + job * (rule != "JobDown")))
    (only,) = found([before, after])
    assert only.startswith(concern)


def test_alert_rules_have_metrics_and_the_same_thresholds() -> None:
    # Of the control log, and of all gateways, of which a page may know only some.
    others = {"ErasureOpen", "NoLease"}
    assert RULES.keys() == {f"Arborcast{each}" for each in METRICS.keys() | others}
    for rule, threshold in THRESHOLDS.items():
        assert threshold in map(float, re.findall(r"[<>] ([0-9.]+)(?![0-9.])", RULES[rule])), rule


@pytest.mark.parametrize(
    ("view", "concern"),
    [
        ({"failing": [endpoint()], "failing_count": 1}, "bad endpoints: 1 endpoint failing"),
        ({"failing": [endpoint(failed=1)], "failing_count": 1}, "warn degraded: 1 endpoint with some fail"),
        ({"problem": "no answer"}, "bad engine: The engine's state is unknown: no answer"),
    ],
)
def test_concerns_without_an_alert(view: dict[str, Any], concern: str) -> None:
    (only,) = found(HEALTHY, **view)
    assert only.startswith(concern)


def test_figures_that_are_no_concern() -> None:
    assert found(last_as(states={"burn 1h": 20.0, "burn 5m": 0.0, "burn 6h": 8.0, "burn 30m": 5.0})) == [], "past"
    gap = [*HEALTHY[:5], MetricsSample(at=NOW - 35, parts={"kafka": True}), *HEALTHY[6:]]
    many = [msgspec.structs.replace(each, attempts={"dead": 2_800.0} if each.attempts else {}) for each in gap]
    assert found(many) == [], "a sample without the job is no growth of counters"
    elsewhere = "arborcast_gateway_lease_held 0\narborcast_mqtt_connected 0\narborcast_dispatch_batches_total 1"
    assert found([sample_of(NOW, Scrape.of(elsewhere))]) == [], "another engine's gateway has the session"
    assert found(HEALTHY, NOW + STALE_S) == []
    (stale,) = found(HEALTHY, NOW + STALE_S + 1)
    assert stale.startswith("bad engine")


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
def test_health_of_an_endpoint(one: dict[str, Any], word: str) -> None:
    assert endpoint_health(one) == word


def test_tiles_have_the_level_of_their_threshold() -> None:
    shown = {each.name: (each.value, each.level) for each in tiles(last_as(lag_seconds=31.0))}
    assert (shown["lag"], shown["delivered"]) == (("31.0 s", "bad"), ("0.2", "good"))
    assert tiles([]) == []


_METRIC = r"(?:arborcast|process|jvm)_[a-z_]+"

# Labels that Prometheus, several workers or the embedded engine add to a process's metrics.
_ADDED = {"le", "job", "instance", "component", "worker"}

EXPRESSIONS = {target["expr"] for panel in PANELS for target in panel.get("targets", ())} | {*RULES.values()}
DESCRIBED = [one for described in reference.catalogue().values() for one in described]


@pytest.mark.parametrize("expression", sorted(EXPRESSIONS))
def test_expressions_have_existing_metrics_and_labels(expression: str) -> None:
    used = set(re.findall(rf"\b{_METRIC}\b", expression))
    assert used
    assert used <= reference.metric_names()
    labels = {
        one.name + suffix: {*one.labels} | _ADDED for one in DESCRIBED for suffix in ("", "_bucket", "_sum", "_count")
    }
    for name, selector in re.findall(rf"({_METRIC})\{{([^}}]*)\}}", expression):
        assert set(re.findall(r"([a-z_]+)\s*(?:=~|!=|!~|=)", selector)) <= labels[name]
    for grouped, name in re.findall(rf"by \(([a-z_, ]+)\) \((?:rate\(|increase\()?({_METRIC})", expression):
        assert set(grouped.split(", ")) <= labels[name]
    kinds = {one.name: one.kind for one in DESCRIBED}
    for name in re.findall(rf"(?:rate|increase)\(({_METRIC})", expression):
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        assert kinds.get(base) == "histogram" or kinds.get(name) == "counter", "only counters have rates"


@pytest.mark.parametrize("rule", RULES)
def test_operands_of_and_are_aggregates(rule: str) -> None:
    operands = re.split(r"\band\b", RULES[rule])
    # `and` compares the labels of its operands: those of an aggregate are none, those of a plain series never match it.
    assert len(operands) == 1 or all(re.match(r"[\s(]*(?:sum|min|max)\(", each) for each in operands)


@pytest.mark.parametrize("process", ["Gateway", "Dispatch job"])
def test_processes_without_metrics_are_an_alert(process: str) -> None:
    # Other conditions on the metrics of a process that does not run are empty.
    absent = set(re.findall(r"\babsent\((\w+)\)", " ".join(RULES.values())))
    assert absent & {one.name for one in reference.catalogue()[process]}


def test_counters_of_alerts_begin_at_zero() -> None:
    # increase() is 0 for a series whose first sample has the first events.
    gateway = Registry()
    RequestMetrics(gateway)
    declare_framed(gateway, Mock(spec=FramedServer, counts=Counts(), connections=0, unread=0))
    lines = (gateway.text() + JobMetrics().registry.text()).splitlines()
    counters = re.findall(r"(?:rate|increase)\((\w+_total)\{(.+?)\}", " ".join(RULES.values()))
    for listener in ("gateway", "framed"):
        assert (f"arborcast_{listener}_refused_total", 'reason="Defect"') in counters
    for name, selector in counters:
        (label, values, more), *_ = re.findall(r'(\w+)!?=~?"([^"]*)"(.*)', selector)
        for value in values.split("|"):
            series = f'{name}{{{label}="{value}"{more}'
            assert any(line.startswith(series) and line.endswith(" 0") for line in lines), series


def test_alert_rules() -> None:
    text = (DOCS / "alerts.md").read_text()
    names = [*RULES]
    explained = re.findall(r"^\| `(Arborcast\w+)` \| \S.* \| \S.* \|$", text, re.MULTILINE)
    assert explained == names, "each has a row of docs/alerts.md: its meaning, and an action"
    assert set(re.findall(r"Arborcast(?:[A-Z][a-z]+)+", text)) <= set(names)
    for rule in ALERTS["rules"]:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]
        assert re.fullmatch(r"\d+[mh]", rule.get("for", "1m"))


def test_names_of_metrics_have_their_unit() -> None:
    for process, described in reference.catalogue().items():
        assert len({one.name for one in described}) == len(described), process
        for one in described:
            assert re.fullmatch(r"[a-z][a-z0-9_]*", one.name)
            # Metrics of the JVM have the names of Prometheus' client for Java; those of collections are a summary.
            ends = ("_total", "_seconds_count", "_seconds_sum") if one.name.startswith("jvm_") else ("_total",)
            assert one.kind != "counter" or one.name.endswith(ends)
            assert one.kind != "histogram" or one.name.endswith("_seconds")
