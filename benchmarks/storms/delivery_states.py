"""The states of deliveries in the engine's logs after a storm, by the receivers and marks of its record."""

from __future__ import annotations

import time
from collections.abc import Mapping

from arborcast.core.errors import InfrastructureError
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs.attempts import FINAL, decode
from arborcast.dispatch.operations.audit import Report, audit
from arborcast.topic_model.records import notifications
from benchmarks.storms.judge import Logged
from tests.support.broker import records_in


def states(kafka: KafkaSettings, receivers: Mapping[str, str]) -> Logged:
    """The deliveries in the logs; `receivers` are the receivers' names by subscription id."""
    marks = {}
    for record in records_in(kafka, "notifications"):
        notification = notifications.decode(record.value or b"")
        if b'mark="' in notification.payload:
            marks[notification.id] = notification.payload.partition(b'mark="')[2].partition(b'"')[0].decode("ascii")
    found: dict[tuple[str, str], str] = {}
    pushes: dict[tuple[str, str], list[tuple[float, float]]] = {}
    over: set[tuple[str, str]] = set()
    for record in records_in(kafka, "attempts"):
        for row in decode(record.value).attempts:
            if row.subscription in receivers and row.notification in marks:
                key = (receivers[row.subscription], marks[row.notification])
                if key not in over or row.state in FINAL:
                    found[key] = row.error if row.state == "dropped" else row.state
                if row.state in FINAL:
                    over.add(key)
                if row.state == "delivered":
                    end_ms = row.started_ms + row.duration_ms + 1  # started_ms is rounded down
                    pushes.setdefault(key, []).append((row.started_ms / 1e3, end_ms / 1e3))
    return Logged(found, pushes)


def settle(kafka: KafkaSettings, since_ms: int, seconds: float) -> Report:
    """The deep audit with the audit of order, once no delivery is pending, or after this time."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            report = audit(kafka, since_ms, patience_s=1.0)
            done = report.balanced and not report.totals.pending and not report.waiting
        except InfrastructureError:
            if time.monotonic() > deadline:
                raise
            done = False
        if done or time.monotonic() > deadline:
            return audit(kafka, since_ms, deep=True, order=True)
        time.sleep(1.0)
