"""docs/monitoring/grafana-dashboard.json: a dashboard for Grafana 10 and newer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_WIDTH = 24
_DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_RATE = "[$__rate_interval]"


@dataclass(frozen=True)
class Panel:
    """One panel: expressions by legend. `unit` is one of Grafana's; `kind` its visualization."""

    title: str
    unit: str
    expressions: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    width: int = 8
    height: int = 7


def _quantiles(name: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"{share * 100:g} %", f"histogram_quantile({share}, sum by (le) (rate({name}_bucket{_RATE})))")
        for share in (0.5, 0.95, 0.99)
    )


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Is it well?",
        (
            Panel("Gateways ready", "none", (("", "min(arborcast_gateway_ready)"),), "stat", 3, 4),
            Panel("Accepted", "short", (("", f"sum(rate(arborcast_gateway_accepted_total{_RATE}))"),), "stat", 4, 4),
            Panel(
                "Delivered",
                "short",
                (("", f'sum(rate(arborcast_attempts_total{{state="delivered"}}{_RATE}))'),),
                "stat",
                4,
                4,
            ),
            Panel("Lag", "s", (("", 'max(arborcast_dispatch_lag_seconds{query="push"})'),), "stat", 4, 4),
            Panel("Parked", "short", (("", 'max(arborcast_deliveries_waiting{kind="parked"})'),), "stat", 3, 4),
            Panel(
                "Dead, last hour",
                "short",
                (("", 'sum(increase(arborcast_attempts_total{state="dead"}[1h]))'),),
                "stat",
                3,
                4,
            ),
            Panel("Subscriptions", "short", (("", "max(arborcast_subscriptions)"),), "stat", 3, 4),
        ),
    ),
    (
        "In",
        (
            Panel(
                "Requests",
                "reqps",
                (
                    (
                        "{{operation}} {{status}}",
                        f"sum by (operation, status) (rate(arborcast_gateway_requests_total{_RATE}))",
                    ),
                ),
            ),
            Panel(
                "Refused, by reason",
                "reqps",
                (("{{reason}}", f"sum by (reason) (rate(arborcast_gateway_refused_total{_RATE}))"),),
            ),
            Panel("From a Notify to its 202", "s", _quantiles("arborcast_gateway_notify_seconds")),
            Panel("Kafka's acknowledgement", "s", _quantiles("arborcast_gateway_append_seconds")),
            Panel("Not acknowledged yet", "bytes", (("{{component}}", "arborcast_gateway_unacknowledged_bytes"),)),
            Panel(
                "Pull points",
                "short",
                (
                    ("messages", "max(arborcast_pull_waiting_messages)"),
                    ("waiting clients", "sum(arborcast_pull_waiting_clients)"),
                ),
            ),
        ),
    ),
    (
        "Dispatch",
        (
            Panel("Lag, records", "short", (("{{query}}", "max by (query) (arborcast_dispatch_lag_records)"),)),
            Panel("Lag, time", "s", (("{{query}}", "max by (query) (arborcast_dispatch_lag_seconds)"),)),
            Panel(
                "Where batches spend their time",
                "percentunit",
                (("{{stage}}", f"sum by (stage) (rate(arborcast_dispatch_batch_seconds_sum{_RATE}))"),),
            ),
            Panel(
                "Batches",
                "ops",
                (
                    ("done", f"sum(rate(arborcast_dispatch_batches_total{_RATE}))"),
                    ("failed", f"sum(rate(arborcast_dispatch_failed_batches_total{_RATE}))"),
                ),
            ),
            Panel(
                "Spark's part of the last batch",
                "s",
                (("{{stage}}", 'max by (stage) (arborcast_dispatch_spark_stage_seconds{query="push"})'),),
            ),
            Panel(
                "The workers' view",
                "short",
                (
                    ("base", "max(arborcast_view_base_subscriptions)"),
                    ("changes since", "max(arborcast_view_overlay_entries)"),
                ),
            ),
            Panel(
                "The workers' view, size",
                "bytes",
                (
                    ("base", "max(arborcast_view_base_bytes)"),
                    ("changes since", "max(arborcast_view_overlay_bytes)"),
                ),
            ),
            Panel("The workers' view, age of the base", "s", (("base", "max(arborcast_view_base_age_seconds)"),)),
            Panel(
                "What batches matched",
                "ops",
                (
                    ("notifications", f"sum(rate(arborcast_dispatch_notifications_total{_RATE}))"),
                    ("deliveries", f"sum(rate(arborcast_dispatch_deliveries_total{_RATE}))"),
                ),
            ),
        ),
    ),
    (
        "Out",
        (
            Panel(
                "Attempts, by state",
                "short",
                (("{{state}}", f"sum by (state) (rate(arborcast_attempts_total{_RATE}))"),),
            ),
            Panel(
                "Attempts that failed, by class of error",
                "short",
                (("{{error}}", f'sum by (error) (rate(arborcast_attempts_total{{error!=""}}{_RATE}))'),),
            ),
            Panel("From acceptance to delivery", "s", _quantiles("arborcast_delivery_seconds")),
            Panel("Pushes", "s", _quantiles("arborcast_push_seconds")),
            Panel(
                "Pushes, by class of failure (none: taken)",
                "ops",
                (("{{error}}", f"sum by (error) (rate(arborcast_pushes_total{_RATE}))"),),
            ),
            Panel(
                "Pushes under way",
                "short",
                (
                    ("{{by}}, now", "sum by (by) (arborcast_pushes_in_flight)"),
                    ("all, on average", f"sum(rate(arborcast_push_seconds_sum{_RATE}))"),
                ),
            ),
            Panel(
                "Connections",
                "ops",
                (("{{connection}}", f"sum by (connection) (rate(arborcast_push_connections_total{_RATE}))"),),
            ),
            Panel(
                "Waiting, and breakers",
                "short",
                (
                    ("{{kind}}", "max by (kind) (arborcast_deliveries_waiting)"),
                    ("breaker {{state}}", "max by (state) (arborcast_endpoint_breakers)"),
                ),
            ),
        ),
    ),
    (
        "Processes of an embedded engine",
        (
            Panel(
                "CPU (cores)",
                "short",
                (("{{process}}", f"sum by (process) (rate(arborcast_process_cpu_seconds_total{_RATE}))"),),
            ),
            Panel("Memory", "bytes", (("{{process}}", "arborcast_process_memory_bytes"),)),
            Panel("Threads", "short", (("{{process}}", "arborcast_process_threads"),)),
            Panel("Files and connections", "short", (("{{process}}", "arborcast_process_descriptors"),)),
            Panel("Restarts", "short", (("{{part}}", "arborcast_part_restarts_total"),)),
        ),
    ),
)


def render() -> str:
    """The whole file."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": 1},
            }
        )
        y += 1
        x = 0
        for panel in row:
            if x + panel.width > _WIDTH:
                x, y = 0, y + panel.height
            panels.append(_panel(len(panels) + 1, panel, x, y))
            x += panel.width
        y += row[-1].height
    dashboard = {
        "uid": "arborcast",
        "title": "Arborcast",
        "tags": ["arborcast"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}]
        },
        "panels": panels,
    }
    return json.dumps(dashboard, indent=1) + "\n"


def _panel(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "datasource": _DATA_SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _DATA_SOURCE,
                "expr": expression,
                "legendFormat": legend or "__auto",
            }
            for index, (legend, expression) in enumerate(panel.expressions)
        ],
    }
