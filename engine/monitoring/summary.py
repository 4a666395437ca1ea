"""The figures of an engine over a period, the same in `arborcast top`, its JSON, the report and the console.

Pure, except for the pause between two readings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from arborcast.engine.monitoring.samples import (
    MetricsSample,
    grown_histogram,
    growth,
    keys_of,
    quantile,
    shares,
)
from arborcast.engine.monitoring.watching import EngineView, EngineWatch

RATE_S = 60.0
"""Period of current rates and quantiles: outcomes are counted when they are recorded, every few seconds
(`tables.interval_s`)."""

# Interval of the first two readings, which a rate needs.
_FIRST_PAUSE_S = 1.0


def first_view(watch: EngineWatch, sleep: Callable[[float], None] = time.sleep) -> EngineView:
    """The current state of the engine, with rates if it is reachable."""
    seen = watch.look()
    if len(seen.samples) == 1:
        sleep(_FIRST_PAUSE_S)
        seen = watch.look()
    return seen


class ProcessSummary(NamedTuple):
    """A process, or all processes of one name. `cpu_cores` is the number of busy cores."""

    cpu_cores: float | None
    memory_bytes: float
    threads: float
    files: float
    processes: float


class Summary:
    """Totals, rates and quantiles over all samples (at least one), and the state as of the last one, `last`.

    None is unknown. A process that was restarted, or did not answer for a while, does not distort them.
    """

    def __init__(self, samples: Sequence[MetricsSample]) -> None:
        self._samples = samples
        self.last = last = samples[-1]
        self.accepted = self.rate("accepted")  # these four: per second
        self.attempts = self.rate("attempts")
        self.delivered = self.rate("attempts", "delivered")
        self.undelivered = max(0.0, (self.attempts or 0.0) - self.delivered) if self.delivered is not None else None
        self.delivery_median = self.quantile("delivery", 0.5)
        self.delivery_99 = self.quantile("delivery", 0.99)
        self.append_99 = self.quantile("append", 0.99)
        self.longest_lag_s = max(sample.lag_seconds for sample in samples)
        self.in_flight = sum(last.in_flight.values())
        self.waiting = last.waiting.get("parked", 0.0)  # deliveries
        self.due = last.waiting.get("due", 0.0)  # subscriptions

    @classmethod
    def current(cls, samples: Sequence[MetricsSample], span_s: float = RATE_S) -> Summary:
        """The summary of the last minute, or of the last two samples."""
        first = next(at for at, sample in enumerate(samples) if sample.at >= samples[-1].at - span_s)
        return cls(samples[max(0, min(first, len(samples) - 2)) :])

    def total(self, counter: str, key: str = "") -> float:
        """The growth of a counter of MetricsSample; `key` is one of its labels."""
        return growth(self._samples, counter, key)

    def totals(self, counter: str) -> dict[str, float]:
        """The same for each of its labels."""
        return {key: self.total(counter, key) for key in keys_of(self._samples, counter)}

    def rate(self, counter: str, key: str = "") -> float | None:
        """The growth of a counter per second."""
        seconds = self.last.at - self._samples[0].at
        return self.total(counter, key) / seconds if seconds > 0 else None

    def quantile(self, histogram: str, share: float) -> float | None:
        """A quantile in seconds of the observations."""
        return quantile(grown_histogram(self._samples, histogram), share)

    @property
    def reused(self) -> float | None:
        """The share of pushes over an open connection."""
        pushes = self.total("pushes")
        return self.total("reused") / pushes if pushes else None

    @property
    def processes(self) -> dict[str, ProcessSummary]:
        """The processes of the last sample, by name."""
        first = {name: next(one for one in self._samples if name in one.processes) for name in self.last.processes}
        return {
            name: ProcessSummary(
                shares([first[name], self.last], "processes", "cpu_seconds", name)[-1],
                each.memory_bytes,
                each.threads,
                each.descriptors,
                each.processes,
            )
            for name, each in sorted(self.last.processes.items())
        }


def document(seen: EngineView, where: str) -> dict[str, Any]:
    """The JSON document of `arborcast top --json`. Null is unknown."""
    about: dict[str, Any] = {"engine": where, "problem": seen.problem or None}
    if not seen.samples:
        return about
    current = Summary.current(seen.samples)
    last = current.last
    return {
        **about,
        "at": datetime.fromtimestamp(last.at, UTC).isoformat(timespec="milliseconds"),
        "ready": all(last.parts.values()) if last.parts else None,
        "parts": dict(last.parts),
        "rates": {"accepted": current.accepted, "delivered": current.delivered, "attempts": current.attempts},
        "pushes_under_way": round(current.in_flight),
        "seconds": {
            "delivery_median": current.delivery_median,
            "delivery_99": current.delivery_99,
            "append_99": current.append_99,
        },
        "mode": last.mode or None,
        "lag": {"records": round(last.lag_records), "seconds": last.lag_seconds},
        "subscriptions": round(last.subscriptions),
        "suspended": round(last.suspended),
        "waiting_for_retry": round(current.waiting),
        "due_now": round(current.due),
        "since_start": {
            "accepted": round(last.accepted),
            "system_notices": round(last.notices),
            "attempts": _whole(last.attempts),
            "refused": _whole(last.refused),
        },
        "breakers": _whole(last.breakers),
        "processes": {
            name: {
                "cpu_cores": each.cpu_cores,
                "memory_bytes": round(each.memory_bytes),
                "threads": round(each.threads),
                "files": round(each.files),
                "processes": round(each.processes),
            }
            for name, each in current.processes.items()
        },
        "jvms": {name: msgspec.structs.asdict(jvm) for name, jvm in sorted(last.jvms.items())},
        "slowest_endpoints": [dict(each) for each in seen.endpoints],
    }


def _whole(counts: Mapping[str, float]) -> dict[str, int]:
    return {name: round(count) for name, count in counts.items()}
