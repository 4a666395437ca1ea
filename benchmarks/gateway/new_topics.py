"""What the first notification on a topic costs: topics that nobody has named, beside one that is known.

    python -m benchmarks.gateway.new_topics [--quick] [--json FILE]

Known and new take turns in one run. A new topic is a record in the control log, which the gateway waits to read back.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import uvloop

from benchmarks.gateway.gateway import request_file
from benchmarks.gateway.http_load import Load
from benchmarks.harness import Report, run
from tests.support.broker import new_broker, settings_for
from tests.support.gateway_process import GatewayRun, gateway_run

_LOAD = "--load"
_NAMED = b"t:plant/line1/press"


class NewTopics(Load):
    """The same request on a topic of its own each time; the body keeps its length."""

    def __init__(self, request: bytes, paced: bool) -> None:
        super().__init__(request, paced)
        self._head, self._tail = request.split(_NAMED)
        self._prefix = b"t:p%05d" % (os.getpid() % 100_000)
        self._next = 0

    @property
    def request(self) -> bytes:
        self._next += 1
        name = b"%s/n%d/n" % (self._prefix, self._next % 100)
        return self._head + name + b"%0*d" % (len(_NAMED) - len(name), self._next) + self._tail


def measure(report: Report) -> None:
    seconds, rounds = (1.0, 1) if report.quick else (4.0, 5)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = request_file(folder, 1)
        broker = new_broker(folder / "kafka")
        broker.start()
        for bound in ("MAXIMUM", "NEW_PER_MINUTE"):
            os.environ[f"ARBORCAST_TOPICS_{bound}"] = "10000000"  # what is measured is not how few are let in
        try:
            with gateway_run(folder / "gateway", settings_for(broker)) as gateway:
                for shape, connections, rate in (("100/s", 16, 100.0), ("64 connections", 64, None)):
                    _compare(report, gateway, file, shape, connections, rate, seconds, rounds)
        finally:
            broker.kill()


def _compare(
    report: Report,
    gateway: GatewayRun,
    file: Path,
    shape: str,
    connections: int,
    rate: float | None,
    seconds: float,
    rounds: int,
) -> None:
    found: dict[str, list[dict[str, float]]] = {"known": [], "new": []}
    process = psutil.Process(gateway.pid)
    for number in range(rounds + 1):
        for what, results in found.items():
            before = sum(process.cpu_times()[:2])
            result = _load(gateway.port, file, connections, seconds, rate, new=what == "new")
            result["cpu"] = (sum(process.cpu_times()[:2]) - before) / max(1.0, result["per_second"] * seconds) * 1e6
            if number:  # the first warms up
                results.append(result)
    columns = ("topics", "accepted/s", "p50 ms", "p99 ms", "refused", "CPU us each", "p50 times known")
    note = f"medians of {rounds} rounds of {seconds:g} s, taken in turns; acknowledged when the notification is stored"
    with report.table(f"First and later notifications, {shape}", *columns, note=note) as table:
        for what, results in found.items():
            middle = {key: statistics.median(each[key] for each in results) for key in results[0]}
            times = statistics.median(a["p50_ms"] / b["p50_ms"] for a, b in zip(results, found["known"], strict=True))
            table.add(
                what,
                middle["per_second"],
                middle["p50_ms"],
                middle["p99_ms"],
                int(sum(each["refused"] for each in results)),
                middle["cpu"],
                times,
            )


def _load(
    port: int, file: Path, connections: int, seconds: float, rate: float | None, *, new: bool
) -> dict[str, float]:
    told = {"port": port, "file": str(file), "count": connections, "seconds": seconds, "rate": rate, "new": new}
    command = [sys.executable, "-m", "benchmarks.gateway.new_topics", _LOAD, json.dumps(told)]
    result: dict[str, float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return result


def _send(file: str, rate: float | None, new: bool, port: int, count: int, seconds: float) -> None:
    load = (NewTopics if new else Load)(Path(file).read_bytes(), rate is not None)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(load.run(port, count, seconds, rate))))


if __name__ == "__main__":
    if sys.argv[1:2] == [_LOAD]:
        _send(**json.loads(sys.argv[2]))
    else:
        run(measure)
