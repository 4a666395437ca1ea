"""What a change of gear costs those who wait.

    python -m benchmarks.dispatch.shifts [--quick] [--json FILE]

200 notifications a second, all the time, open loop with random arrivals. The job runs in this process, so that it can
be told to shift. How long the longest has waited of those that were due from a second before to four seconds behind
each change.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

from pyspark.sql import SparkSession

from arborcast.dispatch.realtime.mode_policy import Gear
from benchmarks.dispatching import Arrival, Surroundings, out_of_order, percentile, surroundings
from benchmarks.harness import Report, Table, run
from tests.support.dispatch_job import RunningJob, job_settings, running
from tests.support.spark import new_session

TITLE = "200/s while the gear changes"

_RATE = 200.0
_APART_S = 8.0
_BEFORE_S, _BEHIND_S = 1.0, 4.0


def measure(report: Report) -> None:
    times = 2 if report.quick else 8
    columns = ("change", "times", "sent", "lost", "twice", "disorder", "p50 ms", "longest ms, median", "longest ms")
    with surroundings() as around, report.table(TITLE, *columns) as table:
        around.subscribe(["one"])
        spark = new_session(around.home / "spark")
        with _running(spark, around) as job:
            _shifts(around, table, job, times)
        spark.stop()


def _running(spark: SparkSession, around: Surroundings) -> AbstractContextManager[RunningJob]:
    return running(spark, job_settings(around.home / "job", around.kafka, "realtime"))


def _shifts(around: Surroundings, table: Table, job: RunningJob, times: int) -> None:
    _warm(around)
    to: tuple[Gear, Gear] = ("batch", "realtime")
    began: dict[Gear, list[float]] = {gear: [] for gear in to}
    with ThreadPoolExecutor(1) as beside:
        load = beside.submit(around.append_at, _RATE, (2 * times + 1) * _APART_S, "shifts")
        for _ in range(times):
            for gear in to:
                time.sleep(_APART_S)
                began[gear].append(time.time())
                job.gears.shift(gear)
        sent = load.result()
    arrived = around.arrivals(len(sent))
    for gear, begins in began.items():
        name = "to batches" if gear == "batch" else "to real time"
        _add(table, f"a shift {name}", sent, arrived, begins, (-_BEFORE_S, _BEHIND_S))


def _warm(around: Surroundings) -> None:
    warm = around.append_at(_RATE, 10, "warm")
    around.arrivals(len(warm))
    around.clear()


def _add(
    table: Table,
    change: str,
    sent: dict[str, float],
    arrived: Sequence[Arrival],
    begins: Sequence[float],
    around_s: tuple[float, float],
) -> None:
    first: dict[str, float] = {}
    for each in arrived:
        if each.notification in sent:
            first.setdefault(each.notification, each.at)
    delays = {name: (at - sent[name]) * 1000 for name, at in first.items()}
    longest = [
        max(delays.get(name, math.inf) for name, at in sent.items() if around_s[0] <= at - begin < around_s[1])
        for begin in begins
    ]
    mine = [each for each in arrived if each.notification in sent]
    table.add(
        change,
        len(begins),
        len(sent),
        len(sent) - len(first),
        len(mine) - len(first),
        out_of_order(mine, sent),
        percentile(list(delays.values()), 0.5),
        statistics.median(longest),
        max(longest),
    )


if __name__ == "__main__":
    run(measure)
