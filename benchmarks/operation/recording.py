"""What recording costs the hot path: the same load with the tables written and without, in turn, in one run.

    python -m benchmarks.operation.recording [--quick] [--json FILE]

Asked: throughput within 10 %, p50 within 1.5 times, p99 within 2 times. Without recording means that the tables are
not written while it is measured (their interval is an hour) and that there is no archive; the log of attempts, which
is no table but the truth, is written in both. The order of the cases turns around from one round to the next, so that
what a machine does in the meantime meets both. What the record query alone can do, and sizes, and questions:
`python -m benchmarks.operation.tables`.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from benchmarks.dispatching import Dispatching, dispatching, percentile
from benchmarks.harness import Report, Table, run

_CASES: dict[str, dict[str, str | int | float]] = {
    "recorded": {},
    "not recorded": {"tables.interval_s": 3_600.0, "tables.archive": False, "tables.max_routes": 0},
}
_ASKED = {"deliveries/s": "at least 0.90", "p50 ms": "at most 1.5", "p99 ms": "at most 2"}
_RATE = 1_000.0


@dataclass
class _Figures:
    """Of one case, a value for each round."""

    rates: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)

    def medians(self) -> tuple[float, float, float]:
        return statistics.median(self.rates), statistics.median(self.p50_ms), statistics.median(self.p99_ms)


def measure(report: Report) -> None:
    rounds, backlog, seconds = (1, 3_000, 5.0) if report.quick else (3, 60_000, 30.0)
    figures = {name: _Figures() for name in _CASES}
    title = f"{rounds} rounds: {backlog:,} waiting, then {_RATE:,.0f}/s for {seconds:g} s"
    with report.table(title, "round", "case", *_ASKED, "lost") as table:
        for number in range(rounds):
            for name in list(_CASES)[:: -1 if number % 2 else 1]:
                with dispatching(_CASES[name]) as bench:
                    _round(bench, number, name, backlog, seconds, figures[name], table)
    recorded, alone = (figures[name].medians() for name in _CASES)
    with report.table("medians", "figure", *_CASES, "ratio", "asked") as table:
        for name, mine, other in zip(_ASKED, recorded, alone, strict=True):
            table.add(name, mine, other, round(mine / other, 2), _ASKED[name])


def _round(
    bench: Dispatching, number: int, name: str, backlog: int, seconds: float, figures: _Figures, table: Table
) -> None:
    bench.subscribe(["one"])
    warm = bench.append_at(200, min(seconds, 10), "warm")
    bench.arrivals(len(warm))
    bench.clear()
    bench.append([f"backlog-{each}" for each in range(backlog)])
    found = bench.arrivals(backlog)
    arrived = [each.at for each in found]
    lost = backlog - len({each.notification for each in found})
    # From the first on: appending them is Kafka's work, and goes on beside.
    figures.rates.append(len(arrived) / (max(arrived) - min(arrived)))
    bench.clear()
    sent = bench.append_at(_RATE, seconds, "steady")
    found = bench.arrivals(len(sent))
    delays = [(each.at - sent[each.notification]) * 1e3 for each in found]
    lost += len(sent) - len({each.notification for each in found})
    figures.p50_ms.append(percentile(delays, 0.5))
    figures.p99_ms.append(percentile(delays, 0.99))
    table.add(number + 1, name, figures.rates[-1], figures.p50_ms[-1], figures.p99_ms[-1], lost)


if __name__ == "__main__":
    run(measure)
