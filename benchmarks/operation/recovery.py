"""kill -9 under load: how long until things go on, what is lost, what is pushed again.

    python -m benchmarks.operation.recovery [--quick] [--json FILE]

What was killed is started again at once, as the supervisor does after its first, shortest wait.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from arborcast.client import Client, ClientError
from benchmarks.dispatching import Arrival, Dispatching, dispatching, out_of_order
from benchmarks.harness import Report, run
from tests.support.gateway_process import GatewayRun, gateway_run

_RATE = 200


def measure(report: Report) -> None:
    rounds = 1 if report.quick else 3
    with TemporaryDirectory(prefix="arborcast-bench-", ignore_cleanup_errors=True) as name, dispatching() as bench:
        bench.subscribe(["one"])
        warm = bench.append_at(50, 5, "warm")
        bench.arrivals(len(warm))
        columns = ("round", "s until the next delivery", "accepted", "lost", "pushed again", "out of order")
        note = f"{_RATE}/s into the log; order counts first arrivals"
        with report.table("the streaming job is killed", *columns, note=note) as table:
            for number in range(rounds):
                table.add(number + 1, *_job(bench, f"job{number}"))
        with (
            gateway_run(Path(name) / "gateway", bench.kafka) as gateway,
            report.table("the gateway is killed", "round", "s until the next 202") as table,
        ):
            for number in range(rounds):
                table.add(number + 1, _gateway(gateway))


def _job(bench: Dispatching, label: str) -> tuple[float, int, int, int, int]:
    bench.clear()
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(bench.append_at, _RATE, 15, label)
        bench.arrivals(_RATE * 3)
        killed = time.time()
        bench.job.kill()
        gone = time.time()
        bench.job.start()
        sent = sending.result()
    arrived = _all(bench, len(sent), label)
    firsts = list({each.notification: each for each in reversed(arrived)}.values())[::-1]
    went_on = min(each.at for each in arrived if each.at > gone)
    lost = len(sent) - len(firsts)
    return went_on - killed, len(sent), lost, len(arrived) - len(firsts), out_of_order(firsts, sent)


def _all(bench: Dispatching, expected: int, label: str) -> list[Arrival]:
    """Until each has arrived: repeated ones must not count for those that are missing."""
    deadline = time.monotonic() + 60
    while True:
        arrived = [each for each in bench.arrivals(expected, timeout=5) if each.notification.startswith(label)]
        if len({each.notification for each in arrived}) >= expected or time.monotonic() > deadline:
            return arrived
        time.sleep(0.5)


def _gateway(gateway: GatewayRun) -> float:
    with Client(gateway.broker) as client:
        client.notify("bench/before", "<x/>")
    gateway.kill()
    killed = time.monotonic()
    gateway.start(ready=False)
    while True:
        try:
            with Client(gateway.broker) as client:
                client.notify("bench/after", "<x/>")
            return time.monotonic() - killed
        except (ClientError, OSError):
            if time.monotonic() - killed > 60:
                raise
            time.sleep(0.02)


if __name__ == "__main__":
    run(measure)
