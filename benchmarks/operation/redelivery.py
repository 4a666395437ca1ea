"""The redelivery alone: draining what is parked when an endpoint is back, and what a million parked rows cost.

    python -m benchmarks.operation.redelivery [--quick] [--json FILE]

A real broker, a receiver in a process of its own; the redelivery runs in this process, as it does in the job's driver.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.security.outbound import AddressPolicy, OutboundSettings
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs.parked import Delivery, ParkingLog, Place, Tries
from arborcast.dispatch.matching.view import SubscriptionListener
from arborcast.dispatch.redelivery.redeliverer import Redeliverer
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.engine.processes import processes
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import DeliveryForm, EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath
from benchmarks.harness import Report, resident, run
from tests.support.broker import new_broker, settings_for

PAYLOAD = b"<n>" + b"x" * 500 + b"</n>"


class Known:
    """Subscriptions that never change."""

    def __init__(self) -> None:
        self.all: dict[str, Subscription] = {}

    def add(self, name: str, url: str, form: DeliveryForm) -> None:
        self.all[name] = Subscription(name, EndpointReference(url), form=form)

    def catch_up(self, timeout_s: float) -> int:
        return 0

    def subscription(self, subscription_id: str) -> Subscription | None:
        return self.all.get(subscription_id)

    def suspended(self, subscription_id: str) -> bool:
        return False

    def is_pushed_to(self, endpoint: str) -> bool:
        return True

    def servers(self, queue: TopicPath) -> list[Subscription]:
        return []

    def listen(self, listener: SubscriptionListener) -> None:
        pass


def park(kafka: KafkaSettings, names: list[str], count: int) -> None:
    """Park so many deliveries, in turn for each of these subscriptions."""
    now_ms = int(time.time() * 1000)
    with closing(ParkingLog(kafka)) as log:
        for number in range(count):
            message = Notification(f"n{number}", TopicPath("plant/line"), PAYLOAD, now_ms)
            log.park(Delivery(names[number % len(names)], Place(0, 0, number)), message, Tries())
            if number % 5_000 == 4_999:
                log.settle(120)
        log.settle(120)


@contextmanager
def running(kafka: KafkaSettings, known: Known, file: Path) -> Iterator[Redeliverer]:
    redeliverer = Redeliverer(
        kafka,
        PushSettings(),
        RetrySettings(first_probe_s=0.2, longest_probe_s=1.0),
        AddressPolicy(OutboundSettings(scope="loopback")),
        known,
        file,
    )
    redeliverer.start(600)
    try:
        yield redeliverer
    finally:
        redeliverer.stop(30)


@contextmanager
def receiver(port: int) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.receiver", "--port", str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.wait()


def until(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def drain(report: Report, kafka: KafkaSettings, home: Path, count: int) -> None:
    """From an endpoint that comes back until all that waited for it is delivered."""
    with report.table(
        "drained when the endpoint is back", "form", "subscriptions", "parked", "seconds", "per second", "RSS MB"
    ) as table:
        forms: tuple[tuple[DeliveryForm, int], ...] = (("notify", 1), ("raw", 1), ("raw", 50))
        for index, (form, subscriptions) in enumerate(forms):
            own = replace(kafka, prefix=f"drain{index}.")
            ensure_topics(own)
            port, known = processes.free_port(), Known()
            names = [f"s{number}" for number in range(subscriptions)]
            for name in names:
                known.add(name, f"http://127.0.0.1:{port}/{name}", form)
            park(own, names, count)
            with running(own, known, home / f"drain{index}.db") as redeliverer:
                until(lambda own=redeliverer: own.statistics().breakers.get("open", 0) > 0, 60)  # type: ignore[misc]
                with receiver(port):
                    began = time.perf_counter()
                    until(lambda own=redeliverer: own.statistics().parked == 0, 3_600)  # type: ignore[misc]
                    taken = time.perf_counter() - began
            table.add(form, subscriptions, count, taken, count / taken, resident() / 1e6)


def hold(report: Report, kafka: KafkaSettings, home: Path, count: int, watch_s: float) -> None:
    """What a dead endpoint's parked rows cost, and what they do to another endpoint."""
    own = replace(kafka, prefix="hold.")
    ensure_topics(own)
    known = Known()
    known.add("dead", f"http://127.0.0.1:{processes.free_port()}/", "raw")
    port = processes.free_port()
    known.add("well", f"http://127.0.0.1:{port}/", "raw")
    process, file = psutil.Process(), home / "hold.db"
    with report.table(
        "one dead endpoint", "parked", "start s", "restart s", "RSS MB", "CPU %", "another's 100 in s"
    ) as table:
        for parked in (0, count):
            park(own, ["dead"], parked)
            before = time.perf_counter()
            with running(own, known, file):
                start_s = time.perf_counter() - before
            before = time.perf_counter()
            with running(own, known, file) as redeliverer, receiver(port):
                restart_s = time.perf_counter() - before
                time.sleep(3.0)  # the breaker has opened
                used = sum(process.cpu_times()[:2])
                time.sleep(watch_s)
                cpu = (sum(process.cpu_times()[:2]) - used) / watch_s * 100
                before = time.perf_counter()
                park(own, ["well"], 100)
                until(lambda own=redeliverer: own.statistics().delivered >= 100, 60)  # type: ignore[misc]
                table.add(parked, start_s, restart_s, resident() / 1e6, cpu, time.perf_counter() - before)


def measure(report: Report) -> None:
    """Everything, against one broker."""
    with TemporaryDirectory() as folder:
        home = Path(folder)
        broker = new_broker(home / "kafka")
        broker.start()
        try:
            kafka = replace(settings_for(broker), partitions=4)
            drain(report, kafka, home, 2_000 if report.quick else 100_000)
            hold(report, kafka, home, 20_000 if report.quick else 1_000_000, 5.0 if report.quick else 20.0)
        finally:
            broker.kill()


if __name__ == "__main__":
    run(measure)
