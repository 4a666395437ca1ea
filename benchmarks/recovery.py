"""kill -9 under load: time until the next delivery, losses, repeated pushes.

    python -m benchmarks.recovery [CASE ...]

Cases: job, gateway, takeover (of a gateway's leadership by another one), broker (one of three). A killed part is
started again at once, as the supervisor does after its first, shortest wait.
"""

from __future__ import annotations

import argparse
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from arborcast.client import Client, ClientError
from benchmarks.report import Report, run, wait_for
from benchmarks.rig import OUTCOME, TOPICS, check, rig
from tests.support.broker_cluster import running_brokers
from tests.support.dispatch_process import running_job
from tests.support.gateway_process import GatewayRun, gateway_run
from tests.support.receiver import Receiver
from tests.support.steady_load import PATHS, counted, under_load

_RATE = 200
_LEADS = "arborcast_gateway_duties"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; without: all")
    parser.add_argument("--away", type=float, default=12.0, help="seconds for which a killed broker stays away")


def measure(report: Report) -> None:
    for case in report.options.cases or CASES:
        CASES[case](report)


def _job(report: Report) -> None:
    with rig() as running:
        job = running.job
        assert job is not None
        paths = running.subscribe(["one"])
        running.warm(paths)
        columns = ("round", "s until the next delivery", *OUTCOME)
        with report.table("the streaming job is killed", *columns, note=f"{_RATE}/s into the log") as table:
            for number in range(1 if report.quick else 3):
                running.receiver.clear()
                with ThreadPoolExecutor(1) as pool:
                    sending = pool.submit(running.append, f"job{number}", _RATE * 15, rate=_RATE)
                    running.receiver.arrivals(_RATE * 3)
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
    with TemporaryDirectory(prefix="arborcast-bench-", ignore_cleanup_errors=True) as name:
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


CASES = {"job": _job, "gateway": _gateway, "takeover": _takeover, "broker": _broker}

if __name__ == "__main__":
    run(measure, options)
