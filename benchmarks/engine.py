"""The engine as a whole: its starts, what it uses when idle, and kill -9 of its parts under load.

    python -m benchmarks.engine [CASE ...] [--small]

Cases: start (up, the first delivery, down), idle (CPU and PSS of each part), load (starts before and after five minutes
at 200/s, with idle partitions). Every start but the first is warm. `--small`: the small profile of docs/operations.md.
Kills, with the time until the next delivery, losses and repeated pushes: job, gateway, takeover (of a gateway's
leadership by another one), broker (one of three). A killed part is started again at once, as the supervisor does after
its first, shortest wait. Without cases: start and idle.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path

from arborcast.client import Client, ClientError
from benchmarks.load import Traffic, send
from benchmarks.report import Report, run, wait_for
from benchmarks.rig import OUTCOME, TOPICS, check, rig
from tests.support.broker_cluster import running_brokers
from tests.support.command import Engine
from tests.support.dispatch_process import running_job
from tests.support.gateway_process import GatewayRun, gateway_run
from tests.support.receiver import Receiver
from tests.support.steady_load import PATHS, counted, under_load

SMALL_PROFILE = {
    "ARBORCAST_DISPATCH_TASK_SLOTS": "2",
    "ARBORCAST_KAFKA_PARTITIONS": "2",
    "ARBORCAST_DISPATCH_DRIVER_MEMORY_MB": "480",
    "ARBORCAST_STACK_KAFKA_HEAP_MB": "128",
}

LOAD = 200

_LEADS = "arborcast_gateway_lease_held"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"start, idle, load, {', '.join(KILLS)}")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="of idling")
    parser.add_argument("--settle", type=float, default=30.0, help="seconds before, while the JIT finishes")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--away", type=float, default=12.0, help="seconds for which a killed broker stays away")


def measure(report: Report) -> None:
    chosen = report.options
    if report.quick:
        chosen.starts, chosen.seconds, chosen.settle = 1, 5.0, 1.0
    if chosen.small:
        os.environ.update(SMALL_PROFILE)
    cases = chosen.cases or ["start", "idle"]
    if {"start", "idle", "load"} & set(cases):
        with tempfile.TemporaryDirectory() as folder, Receiver() as receiver:
            engine = Engine(Path(folder) / "home")
            try:
                _starts(report, "starts", engine, receiver, "cold")
                engine.up()
                if "idle" in cases:
                    _idle(report, engine)
                if "load" in cases:
                    _load(report, engine, receiver)
            finally:
                engine.down()
    for case in filter(KILLS.__contains__, cases):
        KILLS[case](report)


def _has_more(receiver: Receiver, requests: int) -> bool:
    return len(receiver.requests) > requests


def _starts(report: Report, title: str, engine: Engine, receiver: Receiver, first: str = "warm") -> None:
    with report.table(title, "start", "ready s", "delivered s", "stop s") as table:
        for number in range(report.options.starts):
            began = time.monotonic()
            engine.up()
            ready = time.monotonic() - began
            if not number and first == "cold":
                engine.run("subscribe", "bench//.", "--to", receiver.url("/bench"))
            before = len(receiver.requests)
            engine.run("publish", "bench/a", "-", input="<x/>")
            wait_for(partial(_has_more, receiver, before), "the first notification")
            delivered = time.monotonic() - began
            began = time.monotonic()
            engine.down()
            table.add("warm" if number else first, ready, delivered, time.monotonic() - began)


def _idle(report: Report, engine: Engine) -> None:
    """Memory is PSS where there is such a thing (see `arborcast status`)."""
    time.sleep(report.options.settle)
    before, began = _usage(engine), time.monotonic()
    time.sleep(report.options.seconds)
    after, elapsed = _usage(engine), time.monotonic() - began
    with report.table("idle", "part", "MiB", "CPU % of a core") as table:
        rows = [(name, used[0] / 2**20, (used[1] - before[name][1]) / elapsed * 100) for name, used in after.items()]
        for row in [*rows, ("all", sum(row[1] for row in rows), sum(row[2] for row in rows))]:
            table.add(*row)


def _load(report: Report, engine: Engine, receiver: Receiver) -> None:
    """One publisher has one topic, so all other partitions are idle."""
    engine.run("subscribe", "{urn:t}bench//.", "--to", receiver.url("/load"))
    before, seconds = len(_arrivals(receiver)), 5 if report.quick else 300
    sent = send(Traffic(int(engine.gateway.rpartition(":")[2]), 1, seconds, LOAD, topic="bench/p"))
    wait_for(lambda: len(_arrivals(receiver)) >= before + sent.accepted, "all notifications")
    engine.down()
    _starts(report, f"starts after {sent.accepted:,} notifications at {LOAD}/s", engine, receiver)
    engine.up()


def _usage(engine: Engine) -> dict[str, tuple[float, float]]:
    document = engine.status()
    parts = {**document["parts"], "supervisor": document["supervisor"]}
    return {name: (part["memory_bytes"], part["cpu_seconds"]) for name, part in parts.items()}


def _arrivals(receiver: Receiver) -> list[float]:
    """A time for each notification: on a busy machine some share a request."""
    return [
        request.at
        for request in receiver.requests
        for _ in request.headers.get("arborcast-notification-id", "").split(",")
    ]


def _job(report: Report) -> None:
    with rig() as running:
        job = running.job
        assert job is not None
        paths = running.subscribe(["one"])
        running.warm(paths)
        columns = ("round", "s until the next delivery", *OUTCOME)
        with report.table("the streaming job is killed", *columns, note=f"{LOAD}/s into the log") as table:
            for number in range(1 if report.quick else 3):
                running.receiver.clear()
                with ThreadPoolExecutor(1) as pool:
                    sending = pool.submit(running.append, f"job{number}", LOAD * 15, rate=LOAD)
                    running.receiver.arrivals(LOAD * 3)
                    killed = time.time()
                    job.kill()
                    ended = time.time()
                    job.start()
                    sent = sending.result()
                arrived = running.receiver.arrivals(len(sent), 60)
                went_on = min(each.at for each in arrived if each.at > ended)
                table.add(number + 1, went_on - killed, *check(sent, arrived, paths, TOPICS).cells())


def _gateway(report: Report) -> None:
    with rig(job=False, gateway=True) as running:
        gateway = running.gateway
        assert gateway is not None
        with report.table("a gateway is killed", "round", "s until the next 202") as table:
            for number in range(1 if report.quick else 3):
                assert _accepts(gateway)
                gateway.kill()
                killed = time.monotonic()
                gateway.start(ready=False)
                wait_for(lambda: _accepts(gateway), "a notification is accepted", 120, 0.02)
                table.add(number + 1, time.monotonic() - killed)


def _accepts(gateway: GatewayRun) -> bool:
    try:
        with Client(gateway.broker) as client:
            client.notify("bench/a", "<x/>")
    except (ClientError, OSError):
        return False
    return True


def _takeover(report: Report) -> None:
    columns = ("how it ended", "times", "shortest s", "median s", "longest s")
    note = "from the end of the leader until the other gateway leads"
    with rig(job=False) as running, report.table("takeover by another gateway", *columns, note=note) as table:
        folder, kafka = running.home, running.kafka
        with (
            gateway_run(folder / "a", kafka, forked=False) as one,
            gateway_run(folder / "b", kafka, forked=False) as other,
        ):
            for how in ("kill -9", "SIGTERM"):
                taken = [_taken_over(one, other, how) for _ in range(1 if report.quick else 5)]
                table.add(how, len(taken), min(taken), statistics.median(taken), max(taken))


def _taken_over(one: GatewayRun, other: GatewayRun, how: str) -> float:
    one.wait_for(lambda: _leads(one) or _leads(other), "one of them leads")
    leader, heir = (one, other) if _leads(one) else (other, one)
    ended = time.monotonic()
    if how == "SIGTERM":
        leader.stop()
    else:
        leader.kill()
    heir.wait_for(lambda: _leads(heir), "the other leads")
    taken = time.monotonic() - ended
    leader.start()
    return taken


def _leads(gateway: GatewayRun) -> bool:
    return gateway.metric(_LEADS) == 1


def _broker(report: Report) -> None:
    stalls: list[tuple[int, str, float]] = []
    with tempfile.TemporaryDirectory(prefix="arborcast-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with running_brokers(folder / "kafka") as brokers:
            kafka = brokers.settings()
            with Receiver() as receiver, running_job(folder / "job", kafka), under_load(kafka, receiver) as load:
                receiver.wait_for(50)
                for number, broker in list(enumerate(brokers.brokers, start=1))[: 1 if report.quick else 3]:
                    brokers.wait_until_in_sync(kafka)
                    role = "active controller" if brokers.controller() == number else "broker"
                    killed = time.time()
                    broker.kill()
                    time.sleep(report.options.away)
                    arrivals = [killed, *(each.at for each in receiver.requests if each.at > killed), time.time()]
                    stalls.append((number, role, max(later - earlier for earlier, later in pairwise(arrivals))))
                    broker.start(60)
                brokers.wait_until_in_sync(kafka)
                accepted = load.stop()
                deadline = time.monotonic() + 60
                while any(set(accepted) - set(counted(receiver, path)) for path in PATHS):
                    if time.monotonic() > deadline:
                        break
                    time.sleep(0.2)
                arrived = [counted(receiver, path) for path in PATHS]
    lost = sum(name not in each for each in arrived for name in accepted)
    twice = sum(each[name] - 1 for each in arrived for name in accepted if name in each)
    note = f"{len(accepted):,} accepted for {len(PATHS)} subscribers: {lost} lost, {twice} pushed again"
    with report.table("one of three brokers is killed", "broker", "role", "stall s", note=note) as table:
        for row in stalls:
            table.add(*row)


KILLS = {"job": _job, "gateway": _gateway, "takeover": _takeover, "broker": _broker}

if __name__ == "__main__":
    run(measure, options)
