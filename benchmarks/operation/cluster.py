"""What the loss of a part of a cluster costs in time: a gateway that has the duties, a broker.

    python -m benchmarks.operation.cluster [--quick] [--json FILE]

What the cluster itself costs beside local mode measures `executors`, what each broker's loss is like `broker_loss`.
"""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from arborcast.core.settings import KafkaSettings
from benchmarks.harness import Report, run
from tests.support.broker_cluster import BrokerCluster, running_brokers
from tests.support.dispatch_process import running_job
from tests.support.gateway_process import GatewayRun, gateway_run
from tests.support.receiver import Receiver
from tests.support.steady_load import PATHS, counted, under_load

_DUTIES = "arborcast_gateway_duties"


def measure(report: Report) -> None:
    takeovers, away_s = (1, 10.0) if report.quick else (5, 12.0)
    with TemporaryDirectory(prefix="arborcast-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with running_brokers(folder / "kafka") as brokers:
            _gateways(report, folder / "gateways", brokers.settings(prefix="takeover."), takeovers)
            _brokers(report, folder / "job", brokers, away_s)


def _gateways(report: Report, folder: Path, kafka: KafkaSettings, times: int) -> None:
    columns = ("how it ended", "times", "shortest s", "median s", "longest s")
    note = "from the end of the gateway that has the duties until the other one has them"
    with (
        gateway_run(folder / "a", kafka) as one,
        gateway_run(folder / "b", kafka) as other,
        report.table("Takeover of the duties by another gateway", *columns, note=note) as table,
    ):
        for how in ("kill -9", "SIGTERM"):
            taken = [_takeover(one, other, how == "kill -9") for _ in range(times)]
            table.add(how, times, min(taken), statistics.median(taken), max(taken))


def _takeover(one: GatewayRun, other: GatewayRun, kill: bool) -> float:
    one.wait_for(lambda: _has_duties(one) or _has_duties(other), "the duties are somebody's")
    holder, heir = (one, other) if _has_duties(one) else (other, one)
    ended = time.monotonic()
    if kill:
        holder.kill()
    else:
        holder.stop()
    heir.wait_for(lambda: _has_duties(heir), "taken over")
    taken = time.monotonic() - ended
    holder.start()
    return taken


def _has_duties(gateway: GatewayRun) -> bool:
    return gateway.metric(_DUTIES) == 1


def _brokers(report: Report, folder: Path, brokers: BrokerCluster, away_s: float) -> None:
    kafka = brokers.settings()
    stalls: list[tuple[int, bool, float]] = []
    with Receiver() as receiver, running_job(folder, kafka) as _job, under_load(kafka, receiver) as load:
        receiver.wait_for(50)
        for number, broker in enumerate(brokers.brokers, start=1):
            brokers.wait_until_in_sync(kafka)
            active = brokers.controller() == number
            killed = time.time()
            broker.kill()
            time.sleep(away_s)
            arrivals = [killed, *(each.at for each in receiver.requests if each.at > killed), time.time()]
            stalls.append((number, active, max(later - earlier for earlier, later in pairwise(arrivals))))
            broker.start(60)
        brokers.wait_until_in_sync(kafka)
        accepted = load.stop()
        deadline = time.monotonic() + 60
        while any(set(accepted) - set(counted(receiver, path)) for path in PATHS) and time.monotonic() < deadline:
            time.sleep(0.2)
        arrived = [counted(receiver, path) for path in PATHS]
    lost = sum(name not in each for each in arrived for name in accepted)
    twice = sum(each[name] - 1 for each in arrived for name in accepted if name in each)
    note = f"{len(accepted):,} accepted for {len(PATHS)} subscribers: {lost} lost, {twice} arrived again"
    with report.table(
        "Stall of deliveries, one of three brokers killed", "broker", "role", "stall s", note=note
    ) as table:
        for number, active, stall in stalls:
            table.add(number, "active controller" if active else "broker", stall)


if __name__ == "__main__":
    run(measure)
