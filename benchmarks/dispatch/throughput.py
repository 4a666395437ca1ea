"""From publishers through the gateway to subscribers: how many a second, how long it takes, and where the CPU goes.

python -m benchmarks.dispatch.throughput [--quick] [--json FILE]
"""

from __future__ import annotations

from benchmarks.harness import Report, run
from benchmarks.through_gateway import OUTCOME, Outcome, Rig, rig

_PARTS = ("gateway", "kafka", "jvm", "driver", "worker", "receiver")


def measure(report: Report) -> None:
    seconds = 3 if report.quick else 15
    with rig() as running:
        running.bench.subscribe(["one"], topic="{urn:t}bench//.")
        running.run(["/one"], 16, 3)  # the JIT, connections, topics
        _throughput(report, running, seconds)
        _latency(report, running, seconds)
        running.bench.subscribe([f"many{number}" for number in range(50)], topic="{urn:t}wide//.")
        _wide(report, running, seconds)


def _throughput(report: Report, running: Rig, seconds: int) -> None:
    with report.table("one subscriber", "case", *OUTCOME, note="publishers send when they have their answer") as table:
        outcomes = {}
        for publishers, size in ((1, 800), (16, 800), (16, 30_000)):
            name = f"{publishers} publishers, {size:,} bytes"
            outcomes[name] = result = running.run(["/one"], publishers, seconds, size=size)
            table.add(name, *result.cells())
    _cpu(report, outcomes)


def _latency(report: Report, running: Rig, seconds: int) -> None:
    with report.table("latency at a steady rate, one subscriber", "case", *OUTCOME, note="open loop") as table:
        for rate in (50, 500, 1_000):
            table.add(f"{rate:,}/s", *running.run(["/one"], 8, seconds, rate).cells())


def _wide(report: Report, running: Rig, seconds: int) -> None:
    paths = [f"/many{number}" for number in range(50)]
    running.run(paths, 8, 1, 20, topic="wide/p")
    with report.table("50 subscribers", "case", *OUTCOME) as table:
        result = running.run(paths, 8, seconds, topic="wide/p")
        table.add("8 publishers, 800 bytes", *result.cells())
    _cpu(report, {"8 publishers, 50 subscribers": result})


def _cpu(report: Report, outcomes: dict[str, Outcome]) -> None:
    with report.table("CPU, microseconds for each delivery", "case", *_PARTS, "all") as table:
        for name, result in outcomes.items():
            used = [result.cpu.get(part, 0.0) / max(result.delivered, 1) * 1e6 for part in _PARTS]
            table.add(name, *used, sum(used))


if __name__ == "__main__":
    run(measure)
