"""The charts of an engine in `arborcast report` and the console. Pure: samples in, HTML out."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from arborcast.engine.monitoring.attention import THRESHOLDS
from arborcast.engine.monitoring.figures import WORDS, Points, line_plot
from arborcast.engine.monitoring.samples import MetricsSample, cpu_shares, gc_shares, quantiles, rates
from arborcast.engine.monitoring.ticks import Unit

POINTS = 360
"""The number of pixels of a chart."""

COUNTED_S = 30.0
"""Outcomes are counted when they are recorded, every few seconds (`tables.interval_s`): over a shorter time, a steady
rate would alternate between zero and twice its value."""

_OUTCOMES = tuple(
    WORDS.get(each, each) for each in ("delivered", "parked", "dead", "expired", "dropped", "cancelled", "lapsed")
)
_STAGES = tuple(WORDS.get(each, each) for each in ("control", "view", "job", "feedback"))
_PROCESSES = ("kafka", "gateway", "dispatch-jvm", "dispatch-driver", "dispatch-workers", "console", "supervisor")
_JVMS = ("kafka", "dispatch")

STYLE = Path(__file__).with_name("charts.css")
"""Colours and line styles of the charts."""

Values = Iterable[float | None]


class Chart(NamedTuple):
    """One chart: its name in addresses and ids, and its series."""

    name: str
    title: str
    unit: Unit
    series: Callable[[Sequence[MetricsSample]], Mapping[str, Values]]
    order: Sequence[str] = ()
    """Names of series in the order of their colours, so that these do not depend on the other series."""
    limit: float | None = None
    """The threshold of an alert rule."""

    def draw(
        self, samples: Sequence[MetricsSample], span: tuple[float, float] | None = None, offset_s: float = 0.0
    ) -> str:
        """The figure. `span` is the range of its time axis, by default that of the samples. `offset_s` is the
        difference of the axis's time zone from UTC."""
        at = [sample.at for sample in samples]
        spacing = sorted(later - earlier for earlier, later in itertools.pairwise(at))
        gap = 4 * spacing[len(spacing) // 2] + 1 if spacing else 0.0
        drawn: dict[str, Points] = {
            name: list(zip(at, values, strict=True)) for name, values in self.series(samples).items()
        }
        colours = {name: self.order.index(name) if name in self.order else zlib.crc32(name.encode()) for name in drawn}
        return line_plot(self.title, drawn, self.unit, gap, span, colours if self.order else {}, offset_s, self.limit)


def _one(name: str, title: str, unit: Unit, of: Callable[[MetricsSample], float | None], rule: str = "") -> Chart:
    """A chart with one value for each sample."""
    return Chart(name, title, unit, lambda samples: {"": map(of, samples)}, limit=THRESHOLDS.get(rule))


def _by_outcome(samples: Sequence[MetricsSample]) -> Mapping[str, Values]:
    states = sorted(
        {state for sample in samples for state in sample.attempts}, key=lambda state: (state != "delivered", state)
    )
    return {WORDS.get(state, state): rates(samples, "attempts", state, COUNTED_S) for state in states}


def _by_stage(samples: Sequence[MetricsSample]) -> Mapping[str, Values]:
    stages = sorted({stage for sample in samples for stage in sample.stages})
    return {WORDS.get(stage, stage): rates(samples, "stages", stage) for stage in stages}


def _quantiles(name: str) -> Callable[[Sequence[MetricsSample]], Mapping[str, Values]]:
    return lambda samples: {"p50": quantiles(samples, name, 0.5), "p99": quantiles(samples, name, 0.99)}


def _in_flight(samples: Sequence[MetricsSample]) -> Mapping[str, Values]:
    return {
        "first attempts": [sample.in_flight.get("batch") for sample in samples],
        "retries": [sample.in_flight.get("redelivery") for sample in samples],
    }


def _of_each(kind: str, attribute: str) -> Callable[[Sequence[MetricsSample]], Mapping[str, Values]]:
    """A line for each process, or each virtual machine."""

    def series(samples: Sequence[MetricsSample]) -> Mapping[str, Values]:
        return {
            name: [getattr(getattr(sample, kind).get(name), attribute, None) for sample in samples]
            for name in _names(samples, kind)
        }

    return series


def _shares(
    kind: str, of: Callable[[Sequence[MetricsSample], str], Values]
) -> Callable[[Sequence[MetricsSample]], Mapping[str, Values]]:
    return lambda samples: {name: of(samples, name) for name in _names(samples, kind)}


def _heaps(samples: Sequence[MetricsSample]) -> Mapping[str, Values]:
    return {
        f"{name}, {kind}": [getattr(sample.jvms.get(name), attribute, None) for sample in samples]
        for name in _names(samples, "jvms")
        for kind, attribute in (("used", "heap_used"), ("committed", "heap_committed"))
    }


def _names(samples: Sequence[MetricsSample], kind: str) -> list[str]:
    return sorted({name for sample in samples for name in getattr(sample, kind)})


CHARTS: Sequence[Chart] = (
    Chart("accepted", "Accepted per second", "rate", lambda samples: {"": rates(samples, "accepted")}),
    Chart("attempts", "Attempts per second by result", "rate", _by_outcome, _OUTCOMES),
    Chart("delivery", "Delivery latency", "seconds", _quantiles("delivery"), limit=THRESHOLDS["ArborcastDeliverySlow"]),
    Chart("push", "Of it, response time of endpoints", "seconds", _quantiles("push")),
    Chart("append", "Kafka write latency", "seconds", _quantiles("append"), limit=THRESHOLDS["ArborcastAppendSlow"]),
    _one("lag-seconds", "Dispatch lag (seconds)", "seconds", lambda sample: sample.lag_seconds, "ArborcastDispatchLag"),
    _one("lag-records", "Dispatch lag (messages)", "count", lambda sample: sample.lag_records),
    _one(
        "waiting", "Pending retries", "count", lambda sample: sample.waiting.get("parked", 0.0), "ArborcastParkedGrows"
    ),
    _one("due", "Retries due but throttled", "count", lambda sample: sample.waiting.get("due", 0.0)),
    Chart("pushes", "Pushes in flight", "count", _in_flight),
    Chart("stages", "Batch time by stage", "share", _by_stage, _STAGES),
    Chart("cpu", "CPU (% of a core)", "share", _shares("processes", cpu_shares), _PROCESSES),
    Chart("memory", "Memory", "bytes", _of_each("processes", "memory_bytes"), _PROCESSES),
    Chart("threads", "Threads", "count", _of_each("processes", "threads"), _PROCESSES),
    Chart("files", "Open files and connections", "count", _of_each("processes", "descriptors"), _PROCESSES),
    Chart(
        "heap",
        "Heap of the Java virtual machines",
        "bytes",
        _heaps,
        tuple(f"{name}, {kind}" for name in _JVMS for kind in ("used", "committed")),
    ),
    Chart("collecting", "Garbage collection (share of all time)", "share", _shares("jvms", gc_shares), _JVMS),
    Chart("classes", "Java classes loaded", "count", _of_each("jvms", "classes"), _JVMS),
)


def draw_all(
    samples: Sequence[MetricsSample], span: tuple[float, float] | None = None, offset_s: float = 0.0
) -> Iterator[tuple[str, str]]:
    """(name, figure) of each."""
    return ((chart.name, chart.draw(samples, span, offset_s)) for chart in CHARTS)
