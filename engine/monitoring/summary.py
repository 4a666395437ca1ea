"""What `arborcast top --json` prints: the figures of its frame. Pure but for the pause between two looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from arborcast.engine.monitoring.charts import COUNTED_S
from arborcast.engine.monitoring.samples import MetricsSample, cpu_shares, newest, quantiles, rates, thinned
from arborcast.engine.monitoring.watching import EngineView, EngineWatch

# Two looks that far apart make a rate.
_FIRST_PAUSE_S = 1.0

# The number of points in the frame: a rate is that of the last point, and both have to agree.
_POINTS = 50


def first_look(watch: EngineWatch, sleep: Callable[[float], None] = time.sleep) -> EngineView:
    """The engine now, with rates where it can be seen at all."""
    seen = watch.look()
    if len(seen.samples) == 1:
        sleep(_FIRST_PAUSE_S)
        seen = watch.look()
    return seen


def document(seen: EngineView, where: str) -> dict[str, Any]:
    """The JSON document. Rates are per second, up to the newest sample; null is unknown."""
    about: dict[str, Any] = {"engine": where, "problem": seen.problem or None}
    if not seen.samples:
        return about
    points = thinned(seen.samples, _POINTS)
    last = points[-1]
    return {
        **about,
        "at": datetime.fromtimestamp(last.at, UTC).isoformat(timespec="milliseconds"),
        "ready": all(last.parts.values()) if last.parts else None,
        "parts": dict(last.parts),
        "rates": {
            "accepted": newest(rates(points, "accepted")),
            "delivered": newest(rates(points, "attempts", "delivered", COUNTED_S)),
            "attempts": newest(rates(points, "attempts", over_s=COUNTED_S)),
        },
        "pushes_under_way": round(sum(last.in_flight.values())),
        "seconds": {
            "delivery_median": newest(quantiles(points, "delivery", 0.5)),
            "delivery_99": newest(quantiles(points, "delivery", 0.99)),
            "append_99": newest(quantiles(points, "append", 0.99)),
        },
        "gear": last.gear or None,
        "lag": {"records": round(last.lag_records), "seconds": last.lag_seconds},
        "subscriptions": round(last.subscriptions),
        "suspended": round(last.suspended),
        "waiting_for_retry": round(last.waiting.get("parked", 0)),
        "due_now": round(last.waiting.get("due", 0)),
        "since_start": {
            "accepted": round(last.accepted),
            "system_notices": round(last.notices),
            "attempts": _whole(last.attempts),
            "refused": _whole(last.refused),
        },
        "breakers": _whole(last.breakers),
        "processes": {name: _process(points, name) for name in sorted(last.processes)},
        "jvms": {name: msgspec.structs.asdict(jvm) for name, jvm in sorted(last.jvms.items())},
        "slowest_endpoints": [dict(each) for each in seen.endpoints],
    }


def _process(points: Sequence[MetricsSample], name: str) -> Mapping[str, float | None]:
    now = points[-1].processes[name]
    return {
        "cpu_cores": newest(cpu_shares(points, name)),
        "memory_bytes": round(now.memory_bytes),
        "threads": round(now.threads),
        "files": round(now.descriptors),
        "processes": round(now.processes),
    }


def _whole(counts: Mapping[str, float]) -> dict[str, int]:
    return {name: round(count) for name, count in counts.items()}
