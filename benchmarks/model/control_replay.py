"""Start-up over a long control log: a real broker, a follower, a routing table.

    python -m benchmarks.model.control_replay [--quick] [--json FILE]

The log holds a million records (of ten: a topic, seven subscriptions, a renewal, an end), written through ControlLog.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import closing
from pathlib import Path

from arborcast.topic_model.control_log import ControlFollower, ControlLog
from arborcast.topic_model.records.control import ControlRecord
from arborcast.topic_model.routing import RoutingTable
from benchmarks.harness import Report, resident, run
from benchmarks.model.routing_apply import mixed
from tests.support.broker import new_broker, settings_for

_CHUNK = 5_000
_TIMEOUT_S = 600


def measure(report: Report) -> None:
    count = 50_000 if report.quick else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        broker = new_broker(Path(folder))
        broker.start()
        try:
            kafka = settings_for(broker)
            with closing(ControlLog(kafka)) as log:
                log.ensure_created()
                start = time.perf_counter()
                for first in range(0, count, _CHUNK):
                    log.append([mixed(number) for number in range(first, min(count, first + _CHUNK))])
                written = time.perf_counter() - start
            before = resident()
            table = RoutingTable()

            def apply(record: ControlRecord, _offset: int) -> None:
                table.apply(record)

            with closing(ControlFollower(kafka, apply)) as follower:
                start = time.perf_counter()
                follower.read_to_end(_TIMEOUT_S)
                read = time.perf_counter() - start
                start = time.perf_counter()
                for _ in range(100):
                    follower.read_to_end(_TIMEOUT_S)
                nothing_new = (time.perf_counter() - start) / 100
            statistics = table.statistics()
        finally:
            broker.kill()
    with report.table(
        f"{count:,} control records through Kafka", "what", "figure", note="A process that starts waits for the replay."
    ) as rows:
        rows.add("replay, seconds", read)
        rows.add("replay, records/s", count / read)
        rows.add("subscriptions in force afterwards", statistics.subscriptions)
        rows.add("resident memory grown by, MiB", (resident() - before) / 2**20)
        rows.add("read to end with nothing new, ms", nothing_new * 1e3)
        rows.add("appended, records/s (5,000 in one call)", count / written)


if __name__ == "__main__":
    run(measure)
