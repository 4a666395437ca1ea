"""Limits with bad receivers: bytes into the internal logs beside dead endpoints, pushes of each message to a slow one,
memory of the driver while large parked messages end.

    python -m benchmarks.limits [--quick] [--json FILE]
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import psutil

from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs.parked import Delivery, ParkingLog, Place, Tries
from arborcast.topic_model.records.control import SubscriptionRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from benchmarks.redelivery import Known, running
from benchmarks.report import Report, resident, run, wait_for
from benchmarks.rig import Rig, rig, subscription
from tests.support.broker import new_broker
from tests.support.receiver import refusing_url

_LOGS = ("feed", "progress", "attempts", "parked")
_SLOW = "slow/4"
_SLOW_S = 4.0


def measure(report: Report) -> None:
    _dead_and_slow(report, *((100, 10.0) if report.quick else (1_000, 60.0)))
    _ended_at_once(report, *((50, 1 << 20) if report.quick else (500, 4_000_000)))


def _dead_and_slow(report: Report, endpoints: int, seconds: float) -> None:
    columns = ("mode", *(f"{log}, kB/s" for log in _LOGS), "messages to the slow one", "its pushes")
    title = f"{endpoints:,} dead endpoints and one that takes {_SLOW_S:g} s, a message a second for all"
    with report.table(title, *columns) as table:
        for mode in ("realtime", "batch"):
            settings = {"dispatch.gear": mode, "push.total_timeout_s": 60.0}
            with rig(settings) as bench, refusing_url() as dead:
                names = [f"dead-{number}" for number in range(endpoints)]
                bench.control(
                    [SubscriptionRecord(subscription(name, f"{dead}{name}", "bench//.", "raw")) for name in names]
                )
                (path,) = bench.subscribe([_SLOW], form="raw")
                count = len(_sent_each_second(bench, "before", seconds / 2))
                before, began = _bytes_of(bench), time.monotonic()
                count += len(_sent_each_second(bench, "counted", seconds))
                taken = time.monotonic() - began
                added = {log: (after - before[log]) / taken / 1_000 for log, after in _bytes_of(bench).items()}
                arrived = bench.receiver.arrivals(count, 4 * _SLOW_S, [path])
            table.add(mode, *(added[log] for log in _LOGS), count, len(arrived))


def _sent_each_second(bench: Rig, label: str, seconds: float) -> list[str]:
    names = [f"{label}-{number}" for number in range(int(seconds))]
    for number, name in enumerate(names):
        due = time.monotonic() + 1.0
        # In eight topics, so that each lane of the slow receiver has one push in flight.
        bench.append(name, 1, path=f"bench/topic{number % 8}")
        time.sleep(max(0.0, due - time.monotonic()))
    return names


def _bytes_of(bench: Rig) -> Counter[str]:
    """Bytes in the segments of each log. The measurement is shorter than a segment lasts."""
    found: Counter[str] = Counter()
    for file in (bench.home / "kafka").rglob("*.log"):
        for log in _LOGS:
            if file.parent.name.rpartition("-")[0] == bench.kafka.topic(log):
                found[log] += file.stat().st_size
    return found


def _ended_at_once(report: Report, count: int, size: int) -> None:
    columns = ("messages", "MB each", "known, + MB", "ended, + MB", "seconds")
    with (
        report.table("parked messages of one subscription that ends: memory of the driver", *columns) as table,
        tempfile.TemporaryDirectory(prefix="arborcast-bench-", ignore_cleanup_errors=True) as folder,
    ):
        broker = new_broker(Path(folder) / "kafka")
        broker.start()
        try:
            kafka = KafkaSettings(broker.bootstrap_servers)
            ensure_topics(kafka)
            _park(kafka, count, size)
            known = Known()
            known.add("s", "http://127.0.0.1:9/", "raw")
            process, before = psutil.Process(), resident()
            with running(kafka, known, Path(folder) / "parked.sqlite") as redeliverer:
                after_start = process.memory_info().rss - before
                del known.all["s"]
                began, most = time.perf_counter(), 0
                redeliverer.subscription_changed("s")

                def ended() -> bool:
                    nonlocal most
                    most = max(most, process.memory_info().rss - before)
                    return redeliverer.statistics().parked == 0

                wait_for(ended, "nothing is parked", 600)
            table.add(count, size / 1e6, after_start / 1e6, most / 1e6, time.perf_counter() - began)
        finally:
            broker.kill()


def _park(kafka: KafkaSettings, count: int, size: int) -> None:
    payload, now_ms = b"<n>" + os.urandom(size // 2).hex().encode() + b"</n>", int(time.time() * 1000)
    with closing(ParkingLog(kafka)) as log:
        for number in range(count):
            message = Notification(f"n{number}", TopicPath("plant/line"), payload, now_ms)
            log.park(Delivery("s", Place(0, 0, number)), message, Tries())
        log.settle(120)


if __name__ == "__main__":
    run(measure)
