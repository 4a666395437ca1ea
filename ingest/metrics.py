"""Metrics in the Prometheus text format. Counted on the event loop's thread; written out when somebody asks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping

# Seconds. Finer around the target for Notify (p99 of 20 ms) than elsewhere.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Counter:
    """Only goes up; one count for each combination of label values."""

    kind = "counter"

    def __init__(self, name: str, help: str, labels: tuple[str, ...] = ()) -> None:
        self.name = name
        self.help = help
        self._labels = labels
        self._counts: dict[tuple[str, ...], int] = {} if labels else {(): 0}

    def add(self, *values: str, by: int = 1) -> None:
        """Count `by` more for these label values."""
        self._counts[values] = self._counts.get(values, 0) + by

    def lines(self) -> Iterator[str]:
        """Samples in text form."""
        for values, count in sorted(self._counts.items()):
            yield f"{self.name}{_braces(self._labels, values)} {count}"


class Gauge:
    """Goes up and down; read when asked for."""

    kind = "gauge"

    def __init__(self, name: str, help: str, read: Callable[[], float]) -> None:
        self.name = name
        self.help = help
        self._read = read

    def lines(self) -> Iterator[str]:
        """The sample in text form."""
        yield f"{self.name} {self._read()}"


class Histogram:
    """How long something takes."""

    kind = "histogram"

    def __init__(self, name: str, help: str) -> None:
        self.name = name
        self.help = help
        self._counts = [0] * (len(_BUCKETS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """One more that took this long."""
        self._counts[bisect_left(_BUCKETS, seconds)] += 1
        self._sum += seconds

    def lines(self) -> Iterator[str]:
        """Samples in text form."""
        total = 0
        for bound, count in zip((*_BUCKETS, float("inf")), self._counts, strict=True):
            total += count
            yield f'{self.name}_bucket{{le="{"+Inf" if bound == float("inf") else f"{bound:g}"}"}} {total}'
        yield f"{self.name}_sum {self._sum:.6f}"
        yield f"{self.name}_count {total}"


class Registry:
    """The metrics of one process."""

    def __init__(self) -> None:
        self._metrics: list[Counter | Gauge | Histogram] = []

    def counter(self, name: str, help: str, labels: tuple[str, ...] = ()) -> Counter:
        """A new counter."""
        metric = Counter(name, help, labels)
        self._metrics.append(metric)
        return metric

    def gauge(self, name: str, help: str, read: Callable[[], float]) -> None:
        """A new gauge, read with `read`."""
        self._metrics.append(Gauge(name, help, read))

    def histogram(self, name: str, help: str) -> Histogram:
        """A new histogram of seconds."""
        metric = Histogram(name, help)
        self._metrics.append(metric)
        return metric

    def text(self) -> str:
        """All of them, as Prometheus reads them."""
        lines: list[str] = []
        for metric in self._metrics:
            lines += (f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}", *metric.lines())
        return "\n".join(lines) + "\n"


def _braces(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not names:
        return ""
    # Values are ours (names of operations, status codes), but a quote would break every scrape.
    pairs = (f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def merged(texts: Mapping[str, str], label: str) -> str:
    """The metrics of several processes as one text: every sample gets `label` with the name of its process.

    `texts` is by that name; each is what a Registry wrote.
    """
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for name, text in texts.items():
        metric = ""
        for line in text.splitlines():
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
