"""What changes of subscriptions cost a batch, with many subscriptions: on the driver and in a worker, also while a new
base is being made.

    python -m benchmarks.dispatch.view [--quick] [--json FILE]
"""

from __future__ import annotations

import gc
import pickle
import statistics
import tempfile
import time
from pathlib import Path

from arborcast.dispatch.matching.bases import FileBases, SharedBase, SnapshotRebuilder
from arborcast.topic_model.records.control import SubscriptionRecord
from arborcast.topic_model.routing import Overlay, RoutingTable
from arborcast.topic_model.snapshot import Snapshot, SnapshotView
from benchmarks.harness import Report, run
from benchmarks.model.routing_data import subscription, topic
from benchmarks.model.routing_snapshot import table_of


class _Worker:
    """What a worker does with a view, here in the same process: the overlay comes pickled, the base from its file."""

    def __init__(self) -> None:
        self._base: SharedBase | None = None
        self._snapshot: Snapshot | None = None
        self._overlay: bytes = b""
        self._view: SnapshotView | None = None

    def open(self, base: SharedBase, overlay: bytes) -> SnapshotView:
        if self._view is None or self._snapshot is None or base != self._base or overlay != self._overlay:
            snapshot = self._snapshot if self._snapshot is not None and base == self._base else base.open()
            opened: Overlay = pickle.loads(overlay)  # noqa: S301
            self._base, self._snapshot, self._overlay = base, snapshot, overlay
            self._view = SnapshotView(snapshot, opened)
        return self._view


def measure(report: Report) -> None:
    sizes = (10_000,) if report.quick else (10_000, 1_000_000)
    columns = (
        "subscriptions",
        "changes per batch",
        "batches",
        "driver p50 ms",
        "driver max ms",
        "worker p50 ms",
        "worker max ms",
        "new bases",
    )
    with report.table("per batch, to have the workers match by the newest subscriptions", *columns) as table:
        for size in sizes:
            routing = table_of(size)
            # As in the job: what is loaded stays.
            gc.collect()
            gc.freeze()
            for changes in (0, 100):
                with tempfile.TemporaryDirectory() as folder:
                    table.add(size, changes, *_batches(routing, Path(folder) / "bases", changes, report.quick))


def _batches(routing: RoutingTable, folder: Path, changes: int, quick: bool) -> tuple[int | float, ...]:
    rebuilder = SnapshotRebuilder(routing, FileBases(folder))
    worker = _Worker()
    base, overlay = rebuilder.current()
    worker.open(base, pickle.dumps(overlay))
    bases = {base}
    driver: list[float] = []
    opened: list[float] = []
    number = routing.statistics().subscriptions
    # Enough for a base or more at 100 changes each; at ten batches a second, as under load.
    count = 60 if quick or not changes else 300
    for _ in range(count):
        began = time.perf_counter()
        for _ in range(changes):
            routing.apply(SubscriptionRecord(subscription(number, topic(number % 50_000))))
            number += 1
        current, overlay = rebuilder.current()
        data = pickle.dumps(overlay)
        shared = time.perf_counter()
        matched = worker.open(current, data).match(topic(7))
        answered = time.perf_counter()
        assert matched == routing.match(topic(7))
        bases.add(current)
        driver.append((shared - began) * 1e3)
        opened.append((answered - shared) * 1e3)
        time.sleep(0.1)
    rebuilder.close()
    return (
        count,
        statistics.median(driver),
        max(driver),
        statistics.median(opened),
        max(opened),
        len(bases) - 1,
    )


if __name__ == "__main__":
    run(measure)
