"""What a million parked deliveries of one dead endpoint do to everybody else's batches: the real job, the same load
with them and without, in turn, in one run.

    python -m benchmarks.operation.parked_elsewhere [--quick] [--json FILE]

Asked: p99 within 1.2 times that of nothing parked. It is measured once the driver has folded all of it in and the dead
endpoint's breaker is open, which is the state that lasts. The order of the cases turns around from one round to the
next. The redelivery by itself: `python -m benchmarks.operation.redelivery`.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from arborcast.engine.processes import processes
from arborcast.topic_model.records.control import SubscriptionRecord
from arborcast.topic_model.subscriptions import EndpointReference, Subscription, TopicFilter
from benchmarks.dispatching import Dispatching, dispatching, percentile
from benchmarks.harness import Report, run
from benchmarks.operation.redelivery import park

_RATE = 500.0
_FOLDED_WITHIN_S = 1_200.0


def measure(report: Report) -> None:
    rounds, parked, seconds = (1, 20_000, 5.0) if report.quick else (2, 1_000_000, 30.0)
    cases = {"nothing": 0, f"{parked:,}": parked}
    delays: dict[str, list[float]] = {name: [] for name in cases}
    title = f"{_RATE:,.0f}/s for {seconds:g} s, {rounds} rounds"
    with report.table(title, "round", "parked elsewhere", "p50 ms", "p99 ms", "lost", "driver MiB") as table:
        for number in range(rounds):
            for name in list(cases)[:: -1 if number % 2 else 1]:
                with dispatching() as bench:
                    found, lost = _round(bench, cases[name], seconds)
                    driver = bench.processes()["driver"][0].memory_info().rss / 2**20
                delays[name] += found
                table.add(number + 1, name, percentile(found, 0.5), percentile(found, 0.99), lost, driver)
    with report.table("all rounds", "figure", *cases, "ratio", "asked") as table:
        for figure, share, asked in (("p50 ms", 0.5, ""), ("p99 ms", 0.99, "at most 1.2")):
            alone, beside = (percentile(found, share) for found in delays.values())
            table.add(figure, alone, beside, round(beside / alone, 2), asked)


def _round(bench: Dispatching, parked: int, seconds: float) -> tuple[list[float], int]:
    """Delays in ms of what went to a receiver that is well, and how many did not arrive."""
    bench.subscribe(["well"])
    dead = EndpointReference(f"http://127.0.0.1:{processes.free_port()}/")
    topics = (TopicFilter("", "elsewhere", "elsewhere"),)
    bench.control(
        [SubscriptionRecord(Subscription("dead", dead, "http://127.0.0.1/wsn/subscriptions/dead", topics=topics))]
    )
    warm = bench.append_at(200, min(seconds, 10), "warm")
    bench.arrivals(len(warm))
    if parked:
        park(bench.kafka, ["dead"], parked)
        _until_folded(bench.job.home / "parked" / "parked.sqlite", parked)
    # What the warm-up and the folding have left to do, and the first probes of the dead endpoint.
    time.sleep(min(seconds, 10))
    bench.clear()
    sent = bench.append_at(_RATE, seconds, "steady")
    found = bench.arrivals(len(sent))
    delays = [(each.at - sent[each.notification]) * 1e3 for each in found]
    return delays, len(sent) - len({each.notification for each in found})


def _until_folded(file: Path, count: int) -> None:
    deadline = time.monotonic() + _FOLDED_WITHIN_S
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as folded:
        while (known := int(next(folded.execute("SELECT COUNT(*) FROM waiting"))[0])) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"after {_FOLDED_WITHIN_S:g} s the job knows {known:,} of {count:,} parked rows")
            time.sleep(1.0)


if __name__ == "__main__":
    run(measure)
