"""Latency from the append to the log until the receiver has the push, at several rates, in both gears in one run.

    python -m benchmarks.dispatch.latency [--quick] [--json FILE]

Open loop with random arrivals; measured from the moment at which each notification was meant to be appended, so a stall
counts for all that it delayed.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.dispatching import Dispatching, dispatching, out_of_order, percentile, settings_arguments
from benchmarks.harness import Cell, Report, run

_RATES = (5.0, 50.0, 500.0, 1_000.0)

# A 99th percentile of fewer is only the longest one.
_LEAST_SENT = 300

TITLE = "Both gears, from the log to one subscriber"


def measure(report: Report) -> None:
    columns = ("rate", "gear", "sent", "lost", "twice", "disorder", "p50 ms", "p99 ms", "longest ms")
    with report.table(TITLE, *columns, note="open loop, random arrivals") as table:
        measured: list[list[tuple[Cell, ...]]] = []
        for gear in ("realtime", "batch"):
            with dispatching(settings_arguments([f"dispatch.gear={gear}"])) as bench:
                measured.append(list(_measured(bench, gear, quick=report.quick)))
        for of_one_rate in zip(*measured, strict=True):
            for cells in of_one_rate:
                table.add(*cells)


def _measured(bench: Dispatching, gear: str, *, quick: bool) -> Iterator[tuple[Cell, ...]]:
    bench.subscribe(["one"])
    warm = bench.append_at(20, 10, "warm")
    bench.arrivals(len(warm))
    for rate in _RATES:
        bench.clear()
        seconds = 3.0 if quick else max(15.0, _LEAST_SENT / rate)
        sent = bench.append_at(rate, seconds, f"r{rate:g}")
        arrived = [each for each in bench.arrivals(len(sent), timeout=10) if each.notification in sent]
        delays = [(each.at - sent[each.notification]) * 1000 for each in arrived]
        unique = {each.notification for each in arrived}
        yield (
            f"{rate:,.0f}/s",
            gear,
            len(sent),
            len(sent) - len(unique),
            len(arrived) - len(unique),
            out_of_order(arrived, sent),
            percentile(delays, 0.5),
            percentile(delays, 0.99),
            max(delays),
        )


if __name__ == "__main__":
    run(measure)
