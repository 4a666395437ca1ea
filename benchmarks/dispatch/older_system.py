"""The experiments that the older system was measured with, and two that go further.

    python -m benchmarks.dispatch.older_system [--quick] [--json FILE]

One publisher and sixteen, one subscriber, messages of 3,000 and 30,000 bytes: on a topic of two steps, on one of four,
and on the fifth of five topics side by side. It delivered about 460 notifications a second in each, whatever the depth,
the width and the size; the machine was another one. Large messages in ten parts: `benchmarks.dispatch.fragments`.
"""

from __future__ import annotations

from collections.abc import Sequence

from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.topics import TopicPath
from benchmarks.harness import Report, run
from benchmarks.through_gateway import OUTCOME, Outcome, Rig, rig

FLOOR = 460

# The older system told its rate at each of so many messages.
_MARK = 500

_CASES = (("depth 2", "bench/one"), ("depth 4", "bench/one/two/three"), ("fifth sibling", "bench/wide/fifth"))

_BESIDE = tuple(f"bench/wide/{name}" for name in ("first", "second", "third", "fourth", "fifth"))


def measure(report: Report) -> None:
    with rig() as running:
        running.bench.subscribe(["one"], topic="{urn:t}bench//.")
        _add(running, _BESIDE)
        running.run(["/one"], 16, 4)
        _experiments(report, running)
        _further(report, running)


def _experiments(report: Report, running: Rig) -> None:
    cases = _CASES[:1] if report.quick else _CASES
    curves: dict[str, list[float]] = {}
    with report.table(
        "experiments",
        *("case", "publishers", "bytes", *OUTCOME, "fastest : slowest"),
        note=f"The last column: of its rates so far, told at each {_MARK} messages from the second time on.",
    ) as table:
        for publishers in (1, 16):
            for size in (3_000, 30_000):
                for name, topic in cases:
                    outcome = running.run(
                        ["/one"], publishers, 3 if report.quick else 8, size=size, topic=topic, one_topic=True
                    )
                    rates = rates_so_far(outcome)
                    flat = round(max(rates[1:]) / min(rates[1:]), 2) if len(rates) > 1 else None
                    table.add(name, publishers, size, *outcome.cells(), flat)
                    curves[f"{name}, {publishers} x {size:,} bytes"] = rates
    with report.table("rates over time", "messages", *curves, note="Messages so far by the time so far.") as table:
        for number in range(min(max(map(len, curves.values())), 20)):
            table.add(
                (number + 1) * _MARK, *(rates[number] if number < len(rates) else None for rates in curves.values())
            )


def rates_so_far(outcome: Outcome) -> list[float]:
    """Messages a second since the beginning, at each mark."""
    return [(at + 1) / outcome.arrivals[at] for at in range(_MARK - 1, len(outcome.arrivals), _MARK)]


def _further(report: Report, running: Rig) -> None:
    seconds = 2.0 if report.quick else 6.0
    note = "16 publishers with a topic each, one subscriber, 800 bytes"
    with report.table("depth of the topic", "levels", *OUTCOME, note=note) as table:
        for depth in (2, 8) if report.quick else (2, 4, 8, 16):
            topic = "/".join(["bench", *(f"level{number}" for number in range(2, depth)), "p"])
            table.add(depth, *running.run(["/one"], 16, seconds, topic=topic).cells())
    with report.table("width of the tree", "topics side by side", *OUTCOME, note=note) as table:
        there = 0
        for width in (16, 160) if report.quick else (16, 160, 1_600, 16_000):
            _add(running, [f"bench/wide{each}" for each in range(there, width)])
            there = width
            outcome = running.run(["/one"], 16, seconds, topic=f"bench/w{width}x", topics=width // 16)
            table.add(width, *outcome.cells())


def _add(running: Rig, topics: Sequence[str]) -> None:
    running.bench.control([TopicRecord(TopicPath(f"{{urn:t}}{each}")) for each in topics])


if __name__ == "__main__":
    run(measure)
