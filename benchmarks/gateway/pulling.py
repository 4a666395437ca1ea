"""Pull points: how fast messages go in and out, how soon a waiting client has them, what a start with many costs.

    python -m benchmarks.gateway.pulling [--quick] [--json FILE]

A real gateway process over a real broker; the dispatch job is not part of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import requests

from arborcast.core.eventlog.topics import PULL_LOG
from arborcast.core.eventlog.writers import LogWriter
from arborcast.ingest.operations.pull_points import PULL
from arborcast.topic_model.records.pull import StoredMessage, encode
from benchmarks.harness import Report, median_ms, run
from tests.support import soap_messages as soap
from tests.support.broker import new_broker, settings_for
from tests.support.gateway_process import GatewayRun, gateway_run

_ELEMENT = soap.message(payload=f"<n>{'x' * 500}</n>").replace(
    "<wsnt:NotificationMessage>", f'<wsnt:NotificationMessage xmlns:wsnt="{soap.WSNT}">'
)
_MARK = b"</wsnt:NotificationMessage>"


class Point:
    """One pull point of a running gateway."""

    def __init__(self, gateway: GatewayRun, writer: LogWriter) -> None:
        answer = requests.post(
            f"{gateway.base}/wsn/CreatePullPoint", soap.envelope("<wsnt:CreatePullPoint/>"), timeout=10
        )
        self.url = answer.text.partition("Address>")[2].partition("<")[0]
        self._id = self.url.rpartition("/")[2]
        self._writer = writer

    def store(self, count: int) -> None:
        """What dispatch does."""
        record = encode(self._id, StoredMessage(_ELEMENT.encode()))
        for start in range(0, count, 1_000):
            self._writer.append_encoded([record] * min(1_000, count - start))

    def pull(self, session: requests.Session, maximum: int, wait: str = "PT0S") -> int:
        """How many messages one GetMessages got."""
        body = (
            f'<wsnt:GetMessages xmlns:p="{PULL}" p:Wait="{wait}"><wsnt:MaximumNumber>{maximum}</wsnt:MaximumNumber>'
            "</wsnt:GetMessages>"
        )
        answer = session.post(self.url, soap.envelope(body))
        answer.raise_for_status()
        return answer.content.count(_MARK)

    def drain(self, clients: int, maximum: int, count: int) -> float:
        """Seconds until so many clients have fetched all messages."""
        got = [0] * clients

        def fetch(number: int) -> None:
            with requests.Session() as session:
                while found := self.pull(session, maximum):
                    got[number] += found

        seconds = _together([lambda number=number: fetch(number) for number in range(clients)])  # type: ignore[misc]
        assert sum(got) == count, f"{sum(got)} of {count}"
        return seconds


def _together(works: list[Callable[[], None]]) -> float:
    threads = [threading.Thread(target=work) for work in works]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def measure(report: Report) -> None:
    count = 2_000 if report.quick else 20_000
    with TemporaryDirectory(prefix="arborcast-pulling-") as folder:
        broker = new_broker(Path(folder) / "kafka")
        try:
            broker.start()
            kafka = settings_for(broker)
            writer = LogWriter(kafka, PULL_LOG)
            with gateway_run(Path(folder) / "gateway", kafka, pull_messages=1_000_000, pull_bytes=2**30) as gateway:
                _latency(report, Point(gateway, writer), 20 if report.quick else 200)
                _throughput(report, Point(gateway, writer), count)
                _start(report, gateway, Point(gateway, writer), count)
            writer.close()
        finally:
            broker.kill()


def _latency(report: Report, point: Point, times: int) -> None:
    latencies: list[float] = []
    with requests.Session() as session:
        point.store(1)
        point.pull(session, 1)
        for _ in range(times):
            thread = threading.Thread(target=lambda: point.pull(session, 1, "PT20S"))
            thread.start()
            time.sleep(0.02)  # it waits by then
            started = time.perf_counter()
            point.store(1)
            thread.join()
            latencies.append(time.perf_counter() - started)
    latencies.sort()
    with report.table("A client that waits", "times", "median_ms", "p99_ms", note="from the append to the answer") as t:
        t.add(times, median_ms(latencies), latencies[int(len(latencies) * 0.99)] * 1e3)


def _throughput(report: Report, point: Point, count: int) -> None:
    with report.table("Fetching what waits", "clients", "per answer", "messages", "messages/s", "answers/s") as table:
        for clients, maximum in ((1, 256), (4, 256), (1, 1), (8, 1)):
            messages = count if maximum > 1 else count // 20
            point.store(messages)
            seconds = point.drain(clients, maximum, messages)
            table.add(clients, maximum, messages, messages / seconds, messages / maximum / seconds)


def _start(report: Report, gateway: GatewayRun, point: Point, count: int) -> None:
    with report.table("A start", "messages that wait", "seconds until ready", "resident_mib") as table:
        for waiting in (0, count):
            point.store(waiting)
            gateway.kill()
            started = time.perf_counter()
            gateway.start()
            seconds = time.perf_counter() - started
            table.add(waiting, seconds, psutil.Process(gateway.pid).memory_info().rss / 2**20)


if __name__ == "__main__":
    run(measure)
