"""Redelivery: draining a backlog after the recovery of an endpoint, and the cost of many parked deliveries.

    python -m benchmarks.redelivery [CASE ...]

Cases: drain, hold (one dead endpoint's parked rows, in this process as in the driver), elsewhere (the same beside a
healthy subscriber of a real job; target: its p99 within 1.2 times that without parked rows).
"""

from __future__ import annotations

import argparse
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import psutil

from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.security.outbound import AddressPolicy, OutboundSettings
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs.parked import Delivery, ParkingLog, Place, Tries
from arborcast.dispatch.matching.view import SubscriptionListener
from arborcast.dispatch.redelivery.redeliverer import Redeliverer
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.engine.processes import processes
from arborcast.topic_model.records.control import SubscriptionRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import DeliveryForm, EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath
from benchmarks.report import Report, cpu_s, percentile, resident, run, wait_for
from benchmarks.rig import OUTCOME, ReceiverProcess, rig, subscription
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
    """Park `count` deliveries, in turn for each of these subscriptions."""
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
        cast(Any, known),
        file,
    )
    redeliverer.start(600)
    try:
        yield redeliverer
    finally:
        redeliverer.stop(30)


def drain(report: Report, kafka: KafkaSettings, home: Path, count: int) -> None:
    """The time from the recovery of an endpoint until all of its parked messages are delivered."""
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
                wait_for(lambda: redeliverer.statistics().breakers.get("open", 0) > 0, "the breaker is open")
                with ReceiverProcess("--port", str(port)):
                    taken = wait_for(lambda: redeliverer.statistics().parked == 0, "nothing is parked", 3_600, 0.01)
            table.add(form, subscriptions, count, taken, count / taken, resident() / 1e6)


def hold(report: Report, kafka: KafkaSettings, home: Path, count: int, watch_s: float) -> None:
    """The cost of a dead endpoint's parked rows, and their effect on another endpoint."""
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
            with running(own, known, file) as redeliverer, ReceiverProcess("--port", str(port)):
                restart_s = time.perf_counter() - before
                time.sleep(3.0)  # the breaker has opened
                used = cpu_s(process)
                time.sleep(watch_s)
                cpu = (cpu_s(process) - used) / watch_s * 100
                before = time.perf_counter()
                park(own, ["well"], 100)
                wait_for(lambda: redeliverer.statistics().delivered >= 100, "another endpoint has all", 60, 0.01)
                table.add(parked, start_s, restart_s, resident() / 1e6, cpu, time.perf_counter() - before)


def elsewhere(report: Report, parked: int) -> None:
    """The order of the cases is reversed in each round."""
    rounds, seconds, rate = (1, 5.0, 500.0) if report.quick else (2, 30.0, 500.0)
    cases = {"nothing": 0, f"{parked:,}": parked}
    delays: dict[str, list[float]] = {name: [] for name in cases}
    columns = ("round", "parked elsewhere", *OUTCOME, "driver MiB")
    with report.table(f"{rate:,.0f}/s for {seconds:g} s to a healthy subscriber", *columns) as table:
        for number in range(rounds):
            for name in list(cases)[:: -1 if number % 2 else 1]:
                with rig() as running:
                    assert running.job is not None
                    paths = running.subscribe(["well"])
                    dead = f"http://127.0.0.1:{processes.free_port()}/"
                    running.control([SubscriptionRecord(subscription("dead", dead, "elsewhere"))])
                    running.warm(paths, 200, min(seconds, 10))
                    if cases[name]:
                        park(running.kafka, ["dead"], parked)
                        file = running.job.home / "parked" / "parked.sqlite"
                        wait_for(partial(_has_folded, file, parked), "the job has read all that is parked", 1_200, 1.0)
                    # Until the breaker of the dead endpoint is open.
                    time.sleep(min(seconds, 10))
                    running.receiver.clear()
                    outcome = running.delivered(running.append_at(rate, seconds, "steady"), paths)
                    driver = running.processes()["driver"][0].memory_info().rss / 2**20
                delays[name] += outcome.delays
                table.add(number + 1, name, *outcome.cells(), driver)
    with report.table("all rounds", "figure", *cases, "ratio") as table:
        for figure, share in (("p50 ms", 0.5), ("p99 ms", 0.99)):
            alone, beside = (percentile(found, share) for found in delays.values())
            table.add(figure, alone, beside, beside / alone)


def _has_folded(file: Path, count: int) -> bool:
    return _folded(file) >= count


def _folded(file: Path) -> int:
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as opened:
        return int(next(opened.execute("SELECT COUNT(*) FROM waiting"))[0])


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cases", nargs="*", metavar="CASE", help="drain, hold, elsewhere; without: all")
    parser.add_argument("--parked", type=int, default=1_000_000, help="rows of the dead endpoint")


def measure(report: Report) -> None:
    cases = report.options.cases or ["drain", "hold", "elsewhere"]
    parked = 20_000 if report.quick else report.options.parked
    if {"drain", "hold"} & set(cases):
        with TemporaryDirectory() as folder:
            broker = new_broker(Path(folder) / "kafka")
            broker.start()
            try:
                kafka = replace(settings_for(broker), partitions=4)
                if "drain" in cases:
                    drain(report, kafka, Path(folder), 2_000 if report.quick else 100_000)
                if "hold" in cases:
                    hold(report, kafka, Path(folder), parked, 5.0 if report.quick else 20.0)
            finally:
                broker.kill()
    if "elsewhere" in cases:
        elsewhere(report, parked)


if __name__ == "__main__":
    run(measure, options)
