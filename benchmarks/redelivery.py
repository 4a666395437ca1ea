"""Bad receivers: a backlog after the recovery of an endpoint, many parked deliveries, and bytes into the internal logs.

    python -m benchmarks.redelivery [CASE ...]

Cases: drain, hold (one dead endpoint's parked rows, in this process as in the driver), elsewhere (the same beside a
healthy subscriber of a real job; target: its p99 within 1.2 times that without parked rows), dead (bytes into the logs
beside dead endpoints, and pushes of each message to a slow one).
"""

from __future__ import annotations

import argparse
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil

from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.security.outbound import AddressPolicy, OutboundSettings
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs.parked import Delivery, ParkingLog, Place, Tries
from arborcast.dispatch.matching.view import ControlState
from arborcast.dispatch.redelivery.redeliverer import Redeliverer
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.engine.processes.processes import free_port
from arborcast.topic_model.records.control import SubscriptionRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import DeliveryForm
from arborcast.topic_model.topics import TopicPath
from benchmarks.report import Report, cpu_s, percentile, resident, run, wait_for
from benchmarks.rig import OUTCOME, ReceiverProcess, Rig, rig, started_broker
from tests.support.broker import settings_for
from tests.support.make import known_to_redelivery, subscription
from tests.support.receiver import refusing_url


def park(kafka: KafkaSettings, names: list[str], count: int, payload: bytes = b"<n>" + b"x" * 500 + b"</n>") -> None:
    """Park `count` deliveries, in turn for each of these subscriptions."""
    now_ms = int(time.time() * 1000)
    with closing(ParkingLog(kafka)) as log:
        for number in range(count):
            message = Notification(f"n{number}", TopicPath("plant/line"), payload, now_ms)
            log.park(Delivery(names[number % len(names)], Place(0, 0, number)), message, Tries())
            if number % 5_000 == 4_999:
                log.settle(120)
        log.settle(120)


@contextmanager
def redelivering(kafka: KafkaSettings, known: ControlState, file: Path) -> Iterator[Redeliverer]:
    redeliverer = Redeliverer(
        kafka,
        PushSettings(),
        RetrySettings(first_probe_s=0.2, longest_probe_s=1.0),
        AddressPolicy(OutboundSettings(scope="loopback")),
        known_to_redelivery(known),
        file,
    )
    redeliverer.start(600)
    try:
        yield redeliverer
    finally:
        redeliverer.stop(30)


def _known(port: int, *names: str, form: DeliveryForm = "raw") -> ControlState:
    """Subscriptions at one port."""
    known = ControlState()
    for name in names:
        known.apply(SubscriptionRecord(subscription(name, url=f"http://127.0.0.1:{port}/{name}", form=form)))
    return known


def _drain(report: Report, kafka: KafkaSettings, folder: Path) -> None:
    """The time from the recovery of an endpoint until all of its parked messages are delivered."""
    count = 2_000 if report.quick else 100_000
    columns = ("form", "subscriptions", "parked", "seconds", "per second", "RSS MB")
    with report.table("drained when the endpoint is back", *columns) as table:
        forms: tuple[tuple[DeliveryForm, int], ...] = (("notify", 1), ("raw", 1), ("raw", 50))
        for form, subscriptions in forms:
            own, file = replace(kafka, prefix=f"{form}{subscriptions}."), folder / f"{form}{subscriptions}.db"
            ensure_topics(own)
            port, names = free_port(), [f"s{number}" for number in range(subscriptions)]
            park(own, names, count)
            with redelivering(own, _known(port, *names, form=form), file) as redeliverer:
                wait_for(lambda: redeliverer.statistics().breakers.get("open", 0) > 0, "the breaker is open")
                with ReceiverProcess("--port", str(port)):
                    taken = wait_for(lambda: redeliverer.statistics().parked == 0, "nothing is parked", 3_600, 0.01)
            table.add(form, subscriptions, count, taken, count / taken, resident() / 1e6)


def _hold(report: Report, kafka: KafkaSettings, folder: Path) -> None:
    """The cost of a dead endpoint's parked rows, and their effect on another endpoint."""
    count, watch_s = _parked(report), 5.0 if report.quick else 20.0
    own, port, process, file = replace(kafka, prefix="hold."), free_port(), psutil.Process(), folder / "hold.db"
    ensure_topics(own)
    known = _known(port, "well")
    dead = subscription("dead", url=f"http://127.0.0.1:{free_port()}/", form="raw")
    known.apply(SubscriptionRecord(dead))
    columns = ("parked", "start s", "restart s", "RSS MB", "CPU %", "another's 100 in s")
    with report.table("one dead endpoint", *columns) as table:
        for parked in (0, count):
            park(own, ["dead"], parked)
            before = time.perf_counter()
            with redelivering(own, known, file):
                start_s = time.perf_counter() - before
            before = time.perf_counter()
            with redelivering(own, known, file) as redeliverer, ReceiverProcess("--port", str(port)):
                restart_s = time.perf_counter() - before
                time.sleep(3.0)  # the breaker has opened
                used = cpu_s(process)
                time.sleep(watch_s)
                cpu = (cpu_s(process) - used) / watch_s * 100
                before = time.perf_counter()
                park(own, ["well"], 100)
                redeliverer.catch_up(60)
                wait_for(lambda: redeliverer.statistics().parked <= parked, "another has all", 60, 0.01)  # noqa: B023  # called at once
                table.add(parked, start_s, restart_s, resident() / 1e6, cpu, time.perf_counter() - before)


def _elsewhere(report: Report) -> None:
    """The order of the cases is reversed in each round."""
    parked, (rounds, seconds, rate) = _parked(report), (1, 5.0, 500.0) if report.quick else (2, 30.0, 500.0)
    cases = {"nothing": 0, f"{parked:,}": parked}
    delays: dict[str, list[float]] = {name: [] for name in cases}
    columns = ("round", "parked elsewhere", *OUTCOME, "driver MiB")
    with report.table(f"{rate:,.0f}/s for {seconds:g} s to a healthy subscriber", *columns) as table:
        for number in range(rounds):
            for name in list(cases)[:: -1 if number % 2 else 1]:
                with rig() as running:
                    assert running.job is not None
                    paths = running.subscribe(["well"])
                    running.add({"dead": f"http://127.0.0.1:{free_port()}/"}, "elsewhere")
                    running.warm(paths, 200, min(seconds, 10))
                    if cases[name]:
                        park(running.kafka, ["dead"], parked)
                        file = running.job.home / "parked" / "parked.sqlite"
                        wait_for(partial(_has_folded, file, parked), "the job has read all that is parked", 1_200, 1.0)
                    # Until the breaker of the dead endpoint is open.
                    time.sleep(min(seconds, 10))
                    running.receiver.clear()
                    sent = running.append("steady", round(rate * seconds), rate=rate)
                    outcome = running.delivered(sent, paths)
                    driver = running.processes()["driver"][0].memory_info().rss / 2**20
                delays[name] += outcome.delays
                table.add(number + 1, name, *outcome.cells(), driver)
    with report.table("all rounds", "figure", *cases, "ratio") as table:
        for figure, share in (("p50 ms", 0.5), ("p99 ms", 0.99)):
            alone, beside = (percentile(found, share) for found in delays.values())
            table.add(figure, alone, beside, beside / alone)


def _has_folded(file: Path, count: int) -> bool:
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as opened:
        return int(next(opened.execute("SELECT COUNT(*) FROM waiting"))[0]) >= count


_LOGS = ("feed", "progress", "attempts", "parked")
_SLOW, _SLOW_S = "slow/4", 4.0


def _dead(report: Report) -> None:
    endpoints, seconds = (100, 10) if report.quick else (1_000, 60)
    columns = ("mode", *(f"{log}, kB/s" for log in _LOGS), "messages to the slow one", "its pushes")
    title = f"{endpoints:,} dead endpoints and one that takes {_SLOW_S:g} s, a message a second for all"
    with report.table(title, *columns) as table:
        for mode in ("realtime", "batch"):
            settings = {"dispatch.mode": mode, "push.total_timeout_s": 60.0}
            with rig(settings) as running, refusing_url() as dead:
                consumers = {f"dead-{number}": f"{dead}{number}" for number in range(endpoints)}
                running.add(consumers, "bench//.", form="raw")
                (path,) = running.subscribe([_SLOW], form="raw")
                # In eight topics, so that each lane of the slow receiver has about one push in flight.
                running.append("before", seconds // 2, 8, 1.0)
                before, began = _bytes_of(running), time.monotonic()
                running.append("counted", seconds, 8, 1.0)
                taken, after = time.monotonic() - began, _bytes_of(running)
                added = [(after[log] - before[log]) / taken / 1_000 for log in _LOGS]
                count = seconds // 2 + seconds
                arrived = running.receiver.arrivals(count, 4 * _SLOW_S, [path])
            table.add(mode, *added, count, len(arrived))


def _bytes_of(running: Rig) -> Counter[str]:
    """Bytes in the segments of each log. The measurement is shorter than a segment lasts."""
    found: Counter[str] = Counter()
    for file in (running.home / "kafka").rglob("*.log"):
        for log in _LOGS:
            if file.parent.name.rpartition("-")[0] == running.kafka.topic(log):
                found[log] += file.stat().st_size
    return found


def _parked(report: Report) -> int:
    return 20_000 if report.quick else int(report.options.parked)


# Here in one broker, or with a job in a rig.
_HERE = {"drain": _drain, "hold": _hold}
_WITH_JOB = {"elsewhere": _elsewhere, "dead": _dead}


def options(parser: argparse.ArgumentParser) -> None:
    cases = ", ".join((*_HERE, *_WITH_JOB))
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{cases}; without: all")
    parser.add_argument("--parked", type=int, default=1_000_000, help="rows of the dead endpoint")


def measure(report: Report) -> None:
    cases = report.options.cases or [*_HERE, *_WITH_JOB]
    if not _HERE.keys().isdisjoint(cases):
        with started_broker() as (broker, folder):
            for case in filter(_HERE.__contains__, cases):
                _HERE[case](report, replace(settings_for(broker), partitions=4), folder)
    for case in filter(_WITH_JOB.__contains__, cases):
        _WITH_JOB[case](report)


if __name__ == "__main__":
    run(measure, options)
