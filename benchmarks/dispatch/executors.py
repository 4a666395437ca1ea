"""Task slots in local mode, and executors of a Spark cluster on the same cores: what each brings, and what it costs.

    python -m benchmarks.dispatch.executors [--quick] [--json FILE]

Everything is on this machine: beyond its cores more executors cannot bring more, they show what they cost.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from arborcast.dispatch.realtime.mode_policy import Gear
from benchmarks.dispatching import Dispatching, dispatching, out_of_order, percentile
from benchmarks.harness import Report, run, warn
from tests.support.bare_python import bare_python
from tests.support.command import Engine
from tests.support.dispatch_process import Bundle
from tests.support.spark_cluster import running_cluster

_RATE = 500


def measure(report: Report) -> None:
    count, seconds = (2_000, 3.0) if report.quick else (10_000, 8.0)
    columns = ("where", "delivered/s", "p50 ms", "p99 ms", "lost", "twice", "disorder")
    note = f"delivered/s: {count:,} waiting in the log, one message per request; times: {_RATE}/s, open loop"
    with report.table("Task slots and executors", *columns, note=note) as table:
        for slots in (4,) if report.quick else (2, 3, 4):
            with dispatching({"dispatch.task_slots": slots}) as bench:
                table.add(f"local, {slots} task slots", *_measured(bench, count, seconds))
        clusters: list[tuple[int, Gear]] = [(workers, "batch") for workers in ((2,) if report.quick else (1, 2, 3, 4))]
        for workers, gear in [*clusters, (2, "realtime")]:
            name = f"cluster, {workers} executors" + (", real time" if gear == "realtime" else "")
            try:
                with _on_cluster(workers, gear) as bench:
                    table.add(name, *_measured(bench, count, seconds))
            except (RuntimeError, OSError) as error:
                # One size of cluster that does not come up leaves the others to compare.
                warn(f"{name}: {error}")
                table.add(f"{name}: did not start", None, None, None, None, None, None)


def _measured(bench: Dispatching, count: int, seconds: float) -> tuple[float, float, float, int, int, int]:
    bench.subscribe(["one"], form="raw")
    warm = bench.append_at(100, 5, "warm")
    bench.arrivals(len(warm))
    lost = twice = disorder = 0
    rate = 0.0
    for number in range(2):  # the first one still finds code that was never run
        bench.clear()
        ids = [f"b{number}-{each}" for each in range(count)]
        started = time.time()
        bench.append(ids)
        arrived = bench.arrivals(count, timeout=20)
        unique = {each.notification for each in arrived}
        rate = max(rate, len(unique) / (max(each.at for each in arrived) - started))
        lost, twice = lost + count - len(unique), twice + len(arrived) - len(unique)
        disorder += out_of_order(arrived, {})
    bench.clear()
    sent = bench.append_at(_RATE, seconds, "steady")
    arrived = bench.arrivals(len(sent), timeout=20)
    delays = [(each.at - sent[each.notification]) * 1e3 for each in arrived]
    unique = {each.notification for each in arrived}
    return (
        rate,
        percentile(delays, 0.5),
        percentile(delays, 0.99),
        lost + len(sent) - len(unique),
        twice + len(arrived) - len(unique),
        disorder + out_of_order(arrived, sent),
    )


@contextmanager
def _on_cluster(workers: int, gear: Gear) -> Iterator[Dispatching]:
    """The job on so many executors of one core each, bundled and submitted as docs/cluster.md says. Real time has a
    partition for each of them."""
    with TemporaryDirectory(prefix="arborcast-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with running_cluster(folder / "cluster", workers) as cluster:
            python = bare_python(folder / "python")
            out = folder / "bundle"
            Engine(folder).run("bundle", str(out), "--master", cluster.url, "--python", str(python))
            with (out / "spark.properties").open("a", encoding="utf-8") as file:
                file.write("spark.executor.memory 512m\n")
            bundle = Bundle(out / "dispatch_stream.py", out / "spark.properties", python)
            partitions = workers if gear == "realtime" else 4
            with dispatching({"dispatch.gear": gear}, partitions, bundle=bundle) as bench:
                yield bench


if __name__ == "__main__":
    run(measure)
