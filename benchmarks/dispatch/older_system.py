"""The three tests that the older system was measured with: depth of the topic, width of the tree, large messages.

    python -m benchmarks.dispatch.older_system [--quick] [--json FILE]

It delivered about 460 notifications a second in each, whatever the depth and the width; the machine was another one.
"""

from __future__ import annotations

from benchmarks.harness import Report, run
from benchmarks.through_gateway import OUTCOME, rig
from topic_model.records.control import TopicRecord
from topic_model.topics import TopicPath

FLOOR = 460

_PUBLISHERS = 16


def measure(report: Report) -> None:
    seconds = 2.0 if report.quick else 6.0
    note = f"{_PUBLISHERS} publishers, one subscriber"
    with rig() as running:
        running.bench.subscribe(["one"], topic="{urn:t}bench//.")
        running.run(["/one"], 16, 4)
        with report.table("depth of the topic", "levels", *OUTCOME, note=note) as table:
            for depth in (2, 8) if report.quick else (2, 4, 8, 16):
                topic = "/".join(["bench", *(f"level{number}" for number in range(2, depth)), "p"])
                table.add(depth, *running.run(["/one"], _PUBLISHERS, seconds, topic=topic).cells())
        with report.table("width of the tree", "topics side by side", *OUTCOME, note=note) as table:
            there = 0
            for width in (16, 160) if report.quick else (16, 160, 1_600, 16_000):
                wide = [TopicRecord(TopicPath(f"{{urn:t}}bench/wide{each}")) for each in range(there, width)]
                running.bench.control(wide)
                there = width
                outcome = running.run(
                    ["/one"], _PUBLISHERS, seconds, topic=f"bench/w{width}x", topics=width // _PUBLISHERS
                )
                table.add(width, *outcome.cells())
        with report.table("size of a message", "bytes", *OUTCOME, note=note) as table:
            for size in (800, 30_000):
                table.add(size, *running.run(["/one"], _PUBLISHERS, seconds, size=size).cells())


if __name__ == "__main__":
    run(measure)
