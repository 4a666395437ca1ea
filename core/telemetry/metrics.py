"""Metrics in the Prometheus text format, counted by one thread and rendered for each scrape."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence

# Seconds. Finer around the target for Notify (p99 of 20 ms) than elsewhere.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[str, ...]


class Metric:
    """The common part of all metrics. By Prometheus' conventions the name has the unit."""

    def __init__(self, name: str, kind: str, labels: Labels, help: str) -> None:
        self.name = name
        self.kind = kind
        self.labels = labels
        self.help = help


class Readings(Metric):
    """Values that are read at each scrape, by combination of label values: gauges, or counters with their state
    elsewhere. A combination that is no longer returned is no longer exported."""

    def __init__(
        self, name: str, help: str, kind: str, labels: Labels, read: Callable[[], Mapping[Labels, float]]
    ) -> None:
        super().__init__(name, kind, labels, help)
        self._read = read

    def lines(self) -> Iterator[str]:
        for values, value in sorted(self._read().items()):
            yield f"{self.name}{_braces(self.labels, values)} {value}"


class Counter(Readings):
    """A monotonic count for each combination of label values."""

    def __init__(self, name: str, help: str, labels: Labels) -> None:
        self._counts: dict[Labels, float] = {} if labels else {(): 0}
        super().__init__(name, help, "counter", labels, lambda: self._counts)

    def begin(self, *combinations: Labels) -> None:
        """Export these combinations from the start: for Prometheus a series that begins above 0 has no increase."""
        for values in combinations:
            self._counts.setdefault(values, 0)

    def add(self, *values: str, by: float = 1) -> None:
        """Count `by` more for these label values."""
        self._counts[values] = self._counts.get(values, 0) + by


class Histogram(Metric):
    """A histogram of durations for each combination of label values."""

    def __init__(self, name: str, help: str, labels: Labels, buckets: Sequence[float]) -> None:
        super().__init__(name, "histogram", labels, help)
        self._buckets = tuple(buckets)
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}
        if not labels:
            self._begin(())

    def observe(self, seconds: float, *values: str, count: int = 1) -> None:
        """Add `count` durations of this length."""
        counts = self._counts.get(values) or self._begin(values)
        counts[bisect_left(self._buckets, seconds)] += count
        self._sums[values] += seconds * count

    def observe_all(self, counts: Sequence[int], seconds: float, *values: str) -> None:
        """Add many durations: the count of each bucket (one count more than bounds), and their sum."""
        known = self._counts.get(values) or self._begin(values)
        known[:] = [one + other for one, other in zip(known, counts, strict=True)]
        self._sums[values] += seconds

    def lines(self) -> Iterator[str]:
        for values, counts in sorted(self._counts.items()):
            total = 0
            for bound, count in zip((*self._buckets, float("inf")), counts, strict=True):
                total += count
                labels = _braces((*self.labels, "le"), (*values, "+Inf" if bound == float("inf") else f"{bound:g}"))
                yield f"{self.name}_bucket{labels} {total}"
            yield f"{self.name}_sum{_braces(self.labels, values)} {self._sums[values]:.6f}"
            yield f"{self.name}_count{_braces(self.labels, values)} {total}"

    def _begin(self, values: Labels) -> list[int]:
        counts = self._counts[values] = [0] * (len(self._buckets) + 1)
        self._sums[values] = 0.0
        return counts


class Registry:
    """The metrics of one process."""

    def __init__(self) -> None:
        self._metrics: list[Readings | Histogram] = []

    def counter(self, name: str, help: str, labels: Labels = ()) -> Counter:
        metric = Counter(name, help, labels)
        self._metrics.append(metric)
        return metric

    def counted(self, name: str, help: str, read: Callable[[], float]) -> None:
        self.counts(name, help, (), lambda: {(): read()})

    def gauge(self, name: str, help: str, read: Callable[[], float]) -> None:
        self.gauges(name, help, (), lambda: {(): read()})

    def gauges(self, name: str, help: str, labels: Labels, read: Callable[[], Mapping[Labels, float]]) -> None:
        """Add gauges; `read` returns a value for each combination of label values."""
        self._metrics.append(Readings(name, help, "gauge", labels, read))

    def gauges_by(self, name: str, help: str, label: str, read: Callable[[], Mapping[str, float]]) -> None:
        """Add gauges whose values `read` returns, by the value of their only label."""
        self.gauges(name, help, (label,), lambda: {(value,): number for value, number in read().items()})

    def counts(self, name: str, help: str, labels: Labels, read: Callable[[], Mapping[Labels, float]]) -> None:
        """Add counters; `read` returns a value for each combination of label values."""
        self._metrics.append(Readings(name, help, "counter", labels, read))

    def counted_by(self, name: str, help: str, label: str, read: Callable[[], Mapping[str, float]]) -> None:
        """Add counters whose values `read` returns, by the value of their only label."""
        self.counts(name, help, (label,), lambda: {(value,): count for value, count in read().items()})

    def histogram(self, name: str, help: str, labels: Labels = (), buckets: Sequence[float] = BUCKETS) -> Histogram:
        """Add a histogram of seconds."""
        metric = Histogram(name, help, labels, buckets)
        self._metrics.append(metric)
        return metric

    def descriptions(self) -> Sequence[Metric]:
        """All metrics, for the reference page."""
        return self._metrics

    def text(self) -> str:
        """All metrics in the text format of Prometheus."""
        lines: list[str] = []
        for metric in self._metrics:
            lines += (f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}", *metric.lines())
        return "\n".join(lines) + "\n"


def _braces(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not names:
        return ""
    # Values are internal (names of operations, status codes), but one quote would break every scrape.
    pairs = (f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def merged(texts: Mapping[str, str], label: str) -> str:
    """Merge the metrics of several processes: every sample gets `label` with the name of its process.

    `texts` has the text of each Registry, by the name of its process.
    """
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for name, text in texts.items():
        metric = ""
        # Not splitlines, which also splits at characters that a label's value may contain.
        for line in text.split("\n"):
            if line.startswith("#"):
                metric = line.split(" ", 3)[2]
                head = heads.setdefault(metric, [])
                if line not in head:
                    head.append(line)
            elif line:
                samples.setdefault(metric, []).append(_with_label(line, f'{label}="{_escaped(name)}"'))
    lines = [line for metric in heads for line in (*heads[metric], *samples.get(metric, ()))]
    return "\n".join(lines) + "\n"


def _with_label(sample: str, pair: str) -> str:
    name, brace, labels = sample.partition("{")
    if brace:
        return f"{name}{{{pair},{labels}"
    name, _, value = sample.rpartition(" ")
    return f"{name}{{{pair}}} {value}"
