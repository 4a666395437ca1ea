"""Reading the Prometheus text format: what our own processes wrote, looked up by name and labels."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)(?: \d+)?")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)",?')
_ESCAPE = re.compile(r"\\(.)")

NO_BOUND = 1e12
"""Stands for a histogram's infinite bound, which JSON cannot write."""

Buckets = tuple[tuple[float, float], ...]
"""Of a histogram: (upper bound in seconds, how many took at most this long), rising, the last bound NO_BOUND."""


@dataclass(frozen=True)
class Sample:
    """One line."""

    name: str
    labels: Mapping[str, str]
    value: float


class Readings:
    """All samples of one or more scrapes."""

    def __init__(self, samples: Iterable[Sample] = ()) -> None:
        self._samples: dict[str, list[Sample]] = {}
        for sample in samples:
            self._samples.setdefault(sample.name, []).append(sample)

    @classmethod
    def of(cls, *texts: str) -> Readings:
        """From texts; a line that is none of the format's is passed over."""
        return cls(sample for text in texts for line in text.split("\n") if (sample := read_line(line)))

    @property
    def names(self) -> set[str]:
        """Every name there is."""
        return set(self._samples)

    def sum(self, name: str, **labels: str) -> float:
        """The sum of all samples of this name with these labels; 0 without any."""
        return math.fsum(sample.value for sample in self._found(name, labels))

    def most(self, name: str, **labels: str) -> float:
        """The largest of them; 0 without any."""
        return max((sample.value for sample in self._found(name, labels)), default=0.0)

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Sums for each value of a label."""
        sums: dict[str, float] = {}
        for sample in self._found(name, labels):
            value = sample.labels.get(label, "")
            sums[value] = sums.get(value, 0.0) + sample.value
        return sums

    def buckets(self, name: str, **labels: str) -> Buckets:
        """A histogram, added up over all processes and other labels; empty when there is none."""
        sums = self.by(f"{name}_bucket", "le", **labels)
        return tuple(sorted((NO_BOUND if bound == "+Inf" else float(bound), sums[bound]) for bound in sums))

    def _found(self, name: str, labels: Mapping[str, str]) -> list[Sample]:
        return [
            sample
            for sample in self._samples.get(name, ())
            if all(sample.labels.get(label) == value for label, value in labels.items())
        ]


def read_line(line: str) -> Sample | None:
    """A sample; None for a comment, an empty line, or what is neither."""
    match = _SAMPLE.fullmatch(line.strip())
    if match is None or line.startswith("#"):
        return None
    name, labels, value = match.groups()
    try:
        number = float(value)
    except ValueError:
        return None
    return Sample(name, {key: _ESCAPE.sub(_unescaped, text) for key, text in _LABEL.findall(labels or "")}, number)


def _unescaped(match: re.Match[str]) -> str:
    return {"n": "\n"}.get(match[1], match[1])
