"""What needs an operator's attention, from an engine's samples and endpoints. Pure.

The thresholds are those of docs/monitoring/alerts.yml, over the samples in memory (ten minutes), without their minimum
duration: a page shows a condition at once, an alert calls a person.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from arborcast.engine.monitoring import figures
from arborcast.engine.monitoring.samples import MetricsSample, growth
from arborcast.engine.monitoring.summary import Summary
from arborcast.engine.monitoring.watching import EngineView

Level = Literal["good", "warn", "bad", "unknown"]

HealthWord = Literal["healthy", "degraded", "failing", "unknown"]

THRESHOLDS: Mapping[str, float] = {
    "ArborcastDispatchLag": 30.0,
    "ArborcastAppendSlow": 0.5,
    "ArborcastDeliverySlow": 10.0,
    "ArborcastParkedGrows": 10_000.0,
    "ArborcastRefusesForKafka": 0.1,
    "ArborcastDescriptorsGrow": 10_000.0,
    "ArborcastPartRestarts": 3.0,
    "ArborcastBatchesFail": 3.0,
    "ArborcastRedeliveryFails": 3.0,
    "ArborcastBatchStuck": 120.0,
    "ArborcastRecordLag": 300.0,
    "ArborcastDiskFull": 1_000_000_000.0,
    "ArborcastSloBurnsFast": 14.4,
    "ArborcastSloBurns": 6.0,
}
"""By the names of the alert rules."""

STALE_S = 20.0
"""Maximum age in seconds of a current sample: samples have an interval of five seconds."""

_MINUTES = 5 * 60.0


class Concern(NamedTuple):
    """One condition that needs attention. `about` names the affected object: a page links to it."""

    level: Literal["warn", "bad"]
    about: Literal[
        "engine",
        "endpoints",
        "degraded",
        "suspended",
        "dead",
        "waiting",
        "lag",
        "kafka",
        "queues",
        "latency",
        "directory",
        "pull points",
        "objective",
        "erasures",
    ]
    text: str


class Tile(NamedTuple):
    name: str
    label: str
    value: str
    level: Level


def endpoint_health(one: Mapping[str, Any]) -> HealthWord:
    """The health of an endpoint, from its figures in `EngineView.failing`: "failing" if its breaker is not closed or no
    push of the last minutes was taken."""
    pushes, failed, failures = int(one["pushes"]), int(one["failed"]), int(one.get("failures", 0))
    if one.get("breaker", "closed") != "closed" or (failed and failed == pushes):
        return "failing"
    return "degraded" if failed or failures else "healthy"


def is_stale(seen: EngineView, now_s: float | None = None) -> bool:
    """Whether the newest sample is outdated."""
    return not seen.samples or (time.time() if now_s is None else now_s) - seen.samples[-1].at > STALE_S


def concerns(seen: EngineView, now_s: float | None = None) -> list[Concern]:
    """Conditions that need attention, most severe first."""
    if seen.problem or is_stale(seen, now_s):
        why = seen.problem or "there are no current figures"
        return [Concern("bad", "engine", f"The engine's state is unknown: {why}")]
    samples = seen.samples
    found = [*_of_samples(samples), *_of_rare(samples), *_of_objective(samples), *_of_endpoints(seen)]
    return sorted(found, key=lambda each: each.level)  # "bad" sorts before "warn"; equal ones keep their order


def tiles(samples: Sequence[MetricsSample]) -> list[Tile]:
    """The figures of an overview, with their level."""
    if not samples:
        return []
    current = Summary.current(samples)
    latency, waiting, lag = current.delivery_99, current.waiting, current.last.lag_seconds
    dead = _dead_letters(samples)
    return [
        Tile("accepted", "Accepted per second", figures.count(current.accepted), "good"),
        Tile("delivered", "Delivered per second", figures.count(current.delivered), "good"),
        Tile("latency", "Latency p99", figures.seconds(latency), _level(latency, "ArborcastDeliverySlow")),
        Tile("waiting", "Pending retries", figures.count(waiting), _level(waiting, "ArborcastParkedGrows")),
        Tile("dead", "Dead letters, 10 min", figures.count(dead), "warn" if dead else "good"),
        Tile("lag", "Dispatch lag", figures.seconds(lag), _level(lag, "ArborcastDispatchLag")),
    ]


def _dead_letters(samples: Sequence[MetricsSample]) -> float:
    return growth(samples, "attempts", "dead") + growth(samples, "attempts", "expired")


def _level(value: float | None, rule: str) -> Level:
    return "bad" if value is not None and value > THRESHOLDS[rule] else "good"


def _of_samples(samples: Sequence[MetricsSample]) -> Iterator[Concern]:
    recent = Summary.current(samples, _MINUTES)
    last = recent.last
    for part, ready in sorted(last.parts.items()):
        if not ready:
            yield Concern("bad", "engine", f"The part {part} is not ready")
    free = last.states.get("disk free")
    if free is not None and free < THRESHOLDS["ArborcastDiskFull"]:
        yield Concern("bad", "engine", f"The disk of the data directory is nearly full: {free / 1e6:.0f} MB free")
    refused = recent.rate("refused", "InfrastructureError")
    if refused is not None and refused > THRESHOLDS["ArborcastRefusesForKafka"]:
        yield Concern(
            "bad", "kafka", f"Publishers are refused because Kafka is unavailable or slow: {refused:.1f} a second"
        )
    if last.lag_seconds > THRESHOLDS["ArborcastDispatchLag"]:
        yield Concern("bad", "lag", f"Dispatch lag: the oldest notification waits {figures.seconds(last.lag_seconds)}")
    append = recent.append_99
    if append is not None and append > THRESHOLDS["ArborcastAppendSlow"]:
        yield Concern("warn", "kafka", f"Kafka acknowledges slowly: p99 {figures.seconds(append)}")
    latency = Summary.current(samples, 2 * _MINUTES).delivery_99
    if latency is not None and latency > THRESHOLDS["ArborcastDeliverySlow"]:
        yield Concern("warn", "latency", f"Deliveries are slow: p99 {figures.seconds(latency)}")
    if last.suspended:
        yield Concern("warn", "suspended", f"{figures.many(last.suspended, 'subscription')} suspended")
    if dead := _dead_letters(samples):
        yield Concern("warn", "dead", f"{figures.many(dead, 'new dead letter')} in 10 minutes")
    if dropped := growth(samples, "errors", "resources"):
        yield Concern(
            "warn", "waiting", f"{figures.many(dropped, 'delivery', 'deliveries')} dropped: a backlog is full"
        )
    waiting = recent.waiting
    if waiting > THRESHOLDS["ArborcastParkedGrows"]:
        yield Concern("warn", "waiting", f"{figures.count(waiting)} deliveries wait for a retry")
    for name, process in sorted(last.processes.items()):
        if process.descriptors > THRESHOLDS["ArborcastDescriptorsGrow"]:
            yield Concern("warn", "engine", f"{name} has {figures.count(process.descriptors)} open files")


def _of_rare(samples: Sequence[MetricsSample]) -> Iterator[Concern]:
    """Events and states that do not occur in normal operation."""
    states = samples[-1].states
    if states.get("gateway") == 0 and "gateway" not in samples[-1].parts:
        yield Concern("bad", "engine", "A gateway is not ready: it refuses all requests")
    if states.get("job") == 0 and "dispatch" not in samples[-1].parts:
        yield Concern("bad", "engine", "No dispatch job responds: nothing is delivered")
    if (stuck := states.get("batch", 0.0)) > THRESHOLDS["ArborcastBatchStuck"]:
        yield Concern("bad", "lag", f"A batch does not end: {figures.seconds(stuck)} so far")
    if (failed := growth(samples, "events", "failed batch")) > THRESHOLDS["ArborcastBatchesFail"]:
        number = figures.many(failed, "batch or run", "batches or runs")
        yield Concern("bad", "engine", f"{number} failed in 10 minutes")
    if (failed := growth(samples, "events", "failed redelivery")) > THRESHOLDS["ArborcastRedeliveryFails"]:
        yield Concern("bad", "waiting", f"The redelivery failed {figures.many(failed, 'time')} in 10 minutes")
    if (behind := states.get("record lag", 0.0)) > THRESHOLDS["ArborcastRecordLag"]:
        yield Concern("warn", "engine", f"Tables or their upkeep are {figures.seconds(behind)} behind")
    if (restarts := growth(samples, "events", "restart")) > THRESHOLDS["ArborcastPartRestarts"]:
        yield Concern("warn", "engine", f"{figures.many(restarts, 'restart')} of parts in 10 minutes")
    if hangs := growth(samples, "events", "hang") + growth(samples, "events", "hung worker"):
        yield Concern("warn", "engine", f"{figures.many(hangs, 'process', 'processes')} hung and were killed")
    if defects := growth(samples, "refused", "Defect"):
        yield Concern("warn", "engine", f"{figures.many(defects, 'request')} met an internal error of the gateway")
    if refused := growth(samples, "events", "no memory"):
        yield Concern("warn", "engine", f"{figures.many(refused, 'request')} got 503 for lack of memory for requests")
    if states.get("directory") == 0:
        yield Concern("warn", "directory", "The directory of the topics does not respond")
    if states.get("mqtt") == 0:
        yield Concern("warn", "engine", "The MQTT bridge has no session at the broker")
    if (dropped := states.get("pull dropped", 0.0) - samples[0].states.get("pull dropped", 0.0)) > 0:
        yield Concern("warn", "pull points", f"Full pull points dropped {figures.many(dropped, 'message')}")


def _of_objective(samples: Sequence[MetricsSample]) -> Iterator[Concern]:
    """The error budget is spent too fast: over an hour, or over six, and still in the last minutes."""
    rates: tuple[tuple[Literal["warn", "bad"], str, tuple[str, str]], ...] = (
        ("bad", "ArborcastSloBurnsFast", ("1h", "5m")),
        ("warn", "ArborcastSloBurns", ("6h", "30m")),
    )
    for level, rule, windows in rates:
        rate = min(samples[-1].states.get(f"burn {each}", 0.0) for each in windows)
        if rate > THRESHOLDS[rule]:
            text = f"Deliveries are late or lost: in {windows[0]} {rate:.0f} times as many as the objective allows"
            yield Concern(level, "objective", text)
            return


def _of_endpoints(seen: EngineView) -> Iterator[Concern]:
    states = [endpoint_health(one) for one in seen.failing or ()]
    if failing := states.count("failing"):
        more = "more than " if seen.failing_count > len(states) else ""
        yield Concern("bad", "endpoints", f"{more}{figures.many(failing, 'endpoint')} failing")
    if degraded := states.count("degraded"):
        yield Concern("warn", "degraded", f"{figures.many(degraded, 'endpoint')} with some failures")
