"""What it costs to hand a routing table to other processes: building, size, opening, first answers, overlays.

python -m benchmarks.model.routing_snapshot [--quick] [--json FILE]
"""

from __future__ import annotations

import gc
import itertools
import pickle
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from arborcast.topic_model.records.control import SubscriptionEnded, SubscriptionRecord
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.snapshot import Snapshot, SnapshotView
from benchmarks.harness import Report, median_ms, resident, run, seconds
from benchmarks.model.routing_data import NAMESPACE, subscription, topic
from benchmarks.model.routing_match import nanoseconds

# Run in a new process, as a Spark worker is one: from the file (or its bytes) to the first answer.
_WORKER = """
import sys, time, pickle
from pathlib import Path
import psutil
from arborcast.topic_model.snapshot import Snapshot, SnapshotView
before = psutil.Process().memory_info().rss
begin = time.perf_counter()
if sys.argv[1] == "mapped":
    snapshot = Snapshot.open(Path(sys.argv[2]))
else:
    snapshot = Snapshot(Path(sys.argv[2]).read_bytes())
view = SnapshotView(snapshot)
opened = time.perf_counter()
assert view.match(sys.argv[3])
answered = time.perf_counter()
print(opened - begin, answered - opened, psutil.Process().memory_info().rss - before)
"""


def table_of(count: int) -> RoutingTable:
    routing = RoutingTable()
    for number in range(count):
        routing.apply(SubscriptionRecord(subscription(number, topic(number))))
    return routing


def base(report: Report) -> None:
    sizes = (1_000, 20_000) if report.quick else (1_000, 100_000, 1_000_000)
    with (
        report.table(
            "the base, exact subscriptions",
            "subscriptions",
            "checkpoint, ms",
            "build, s",
            "size, MB",
            "bytes each",
            "write file, s",
            "open mapped, ms",
            "open bytes, ms",
            "first answer, us",
            "worker's memory, MB",
            note="Opened in a new process each; `mapped` shares its pages with all others.",
        ) as table,
        tempfile.TemporaryDirectory() as directory,
    ):
        for size in sizes:
            routing = table_of(size)
            gc.collect()
            begin = time.perf_counter()
            checkpoint = routing.checkpoint()
            taken = time.perf_counter()
            snapshot = Snapshot.build(checkpoint)
            built = time.perf_counter()
            file = Path(directory) / f"snapshot-{size}"
            written = seconds(lambda file=file, snapshot=snapshot: snapshot.write(file))  # type: ignore[misc]
            mapped_s, first_s, memory = _in_worker("mapped", file, topic(size // 2))
            bytes_s, _, _ = _in_worker("bytes", file, topic(size // 2))
            table.add(
                size,
                (taken - begin) * 1e3,
                built - taken,
                snapshot.size / 1e6,
                snapshot.size / size,
                written,
                mapped_s * 1e3,
                bytes_s * 1e3,
                first_s * 1e6,
                memory / 1e6,
            )


def _in_worker(how: str, file: Path, path: str) -> tuple[float, float, float]:
    command = [sys.executable, "-c", _WORKER, how, str(file), path]
    opened, answered, memory = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(opened), float(answered), float(memory)


def matching(report: Report) -> None:
    size = 20_000 if report.quick else 1_000_000
    draws = min(size, 50_000)
    snapshot = Snapshot.build(table_of(size))
    generator = random.Random(5)
    asked = generator.sample(range(size), draws)
    hot = generator.choices(asked[:1_000], k=draws)
    with report.table(
        f"match through a view, nanoseconds, {size:,} subscriptions", "first look-up", "further (hot)", "memory, MB"
    ) as table:
        view = SnapshotView(snapshot)
        before = resident()
        first = nanoseconds(view.match, [topic(number) for number in asked], rounds=1)
        after = resident()
        table.add(first, nanoseconds(view.match, [topic(number) for number in hot]), (after - before) / 1e6)


def overlays(report: Report) -> None:
    size = 20_000 if report.quick else 1_000_000
    routing = table_of(size)
    checkpoint = routing.checkpoint()
    snapshot = Snapshot.build(checkpoint)
    with report.table(
        f"overlays on {size:,} subscriptions: from records to an answer in a worker, median of 20, milliseconds",
        "new changes",
        "changes before",
        "apply",
        "overlay",
        "pickle",
        "open and view",
        "first 100 answers",
        "together",
        "pickled bytes",
        note="Half are new exact subscriptions, a quarter subtrees, a quarter ends. `together` is without sending.",
    ) as table:
        table.add(0, 0, 0.0, seconds(checkpoint.overlay, 20) * 1e3, None, None, None, None, None)
        number = size
        for changes, rounds in ((100, 20), (1_000, 8)):
            steps: list[tuple[float, ...]] = []
            before = checkpoint.overlay().size
            pickled = b""
            for _ in range(rounds):
                records = [_change(each) for each in range(number, number + changes)]
                asked = [topic(each) for each in range(number, number + 100)]
                number += changes
                marks = [time.perf_counter()]
                for record in records:
                    routing.apply(record)
                marks.append(time.perf_counter())
                overlay = checkpoint.overlay()
                marks.append(time.perf_counter())
                pickled = pickle.dumps(overlay)
                marks.append(time.perf_counter())
                view = SnapshotView(snapshot, pickle.loads(pickled))  # noqa: S301
                marks.append(time.perf_counter())
                for path in asked:
                    view.match(path)
                marks.append(time.perf_counter())
                steps.append(tuple(later - earlier for earlier, later in itertools.pairwise(marks)))
                assert all(view.match(path) == routing.match(path) for path in asked)
            medians = [median_ms(step) for step in zip(*steps, strict=True)]
            together = median_ms(sum(step) for step in steps)
            table.add(changes, before, *medians, together, len(pickled))


def _change(number: int) -> SubscriptionRecord | SubscriptionEnded:
    match number % 4:
        case 0:
            return SubscriptionEnded(f"{number % 10_000:032x}", "unsubscribed", 0)
        case 1:
            return SubscriptionRecord(subscription(number, f"{{{NAMESPACE}}}plant/level1-{number % 10}//."))
        case _:
            return SubscriptionRecord(subscription(number, topic(number)))


def measure(report: Report) -> None:
    base(report)
    matching(report)
    overlays(report)


if __name__ == "__main__":
    run(measure)
