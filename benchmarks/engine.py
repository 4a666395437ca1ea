"""The embedded engine as a whole: its starts, and what it uses when idle.

    python -m benchmarks.engine [CASE ...] [--small]

Cases: start (up, the first delivery, down), stages (of the job's start, with and without the archive of JVM classes),
idle (CPU and PSS of each part), load (starts before and after five minutes at 200/s, with idle partitions).
`--small` is the small profile of docs/operations.md. Every start but the first is warm.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.load import Traffic, send
from benchmarks.report import Report, cpu_s, run, wait_for
from benchmarks.rig import rig
from tests.support.command import Engine
from tests.support.dispatch_process import DispatchProcess
from tests.support.receiver import Receiver

SMALL_PROFILE = {
    "ARBORCAST_DISPATCH_TASK_SLOTS": "2",
    "ARBORCAST_KAFKA_PARTITIONS": "2",
    "ARBORCAST_DISPATCH_DRIVER_MEMORY_MB": "480",
    "ARBORCAST_STACK_KAFKA_HEAP_MB": "128",
}

LOAD = 200

# The job prints these, with the time, at the end of a stage.
_STAGES = {"Spark session": "pushes may go to", "warm-up": "warmed up in", "queries": "ready to deliver"}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cases", nargs="*", metavar="CASE", help="start, stages, idle, load; without: start and idle")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="of idling")
    parser.add_argument("--settle", type=float, default=30.0, help="seconds before, while the JIT finishes")
    parser.add_argument("--small", action="store_true")


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
    if "stages" in cases:
        _stages(report)


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


def _stages(report: Report) -> None:
    found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    with rig(job=False) as running:
        running.subscribe(["one"])
        jobs = {kind: DispatchProcess(running.home / str(kind), running.kafka, archive=kind) for kind in found}
        for _ in range(report.options.starts):
            for kind, job in jobs.items():
                found[kind].append(_start(job))
    with report.table("stages of the job's start, medians", "stage", "without archive s", "with s", "ratio") as table:
        for name in found[True][0]:
            without, with_archive = (median(each[name] for each in found[kind]) for kind in (False, True))
            table.add(name, without, with_archive, with_archive / max(without, 0.01))


def _start(job: DispatchProcess) -> dict[str, float]:
    began = time.time()
    job.start(600)
    ready = time.time()
    processes, log = job.processes(), job.log(20_000)
    figures = {"ready": ready - began, "launcher and JVM": processes["driver"][0].create_time() - began}
    last = began + figures["launcher and JVM"]
    for stage, words in _STAGES.items():
        *_, line = (line for line in log.splitlines() if words in line)
        at = datetime.fromisoformat(re.split(r"\s", line)[0]).timestamp()
        figures[stage], last = at - last, at
    for role, members in processes.items():
        figures[f"CPU of {role}"] = cpu_s(*members)
    job.kill()
    return figures


if __name__ == "__main__":
    run(measure, options)
