"""How long nobody does what one of several gateways does for all, after that one was killed, or stopped in order.

python -m tests.benchmarks.takeover [--quick] [--json FILE]
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from tests.benchmarks._harness import Report, run
from tests.support.broker import new_broker, settings_for
from tests.support.gateway_process import GatewayRun, gateway_run


def measure(report: Report) -> None:
    rounds = 1 if report.quick else 5
    with tempfile.TemporaryDirectory(prefix="arborcast-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        broker = new_broker(folder / "kafka")
        broker.start()
        try:
            kafka = settings_for(broker)
            with (
                gateway_run(folder / "a", kafka) as one,
                gateway_run(folder / "b", kafka) as other,
                report.table("two gateways: from the end of one to the other's taking over", "how", "s") as table,
            ):
                for number in range(rounds):
                    for how in ("kill -9", "stop"):
                        table.add(f"{how}, {number + 1}", _taken_over((one, other), how))
        finally:
            broker.kill()


def _taken_over(gateways: tuple[GatewayRun, GatewayRun], how: str) -> float:
    holder = None
    while holder is None:
        holder = next((each for each in gateways if _duties(each)), None)
        time.sleep(0.02)
    (other,) = (each for each in gateways if each is not holder)
    began = time.monotonic()
    if how == "stop":
        holder.stop()
    else:
        holder.kill()
    while not _duties(other):
        if time.monotonic() - began > 60:
            raise RuntimeError("nobody took over within 60 s")
        time.sleep(0.02)
    taken = time.monotonic() - began
    holder.start()
    return taken


def _duties(gateway: GatewayRun) -> bool:
    return gateway.metric("arborcast_gateway_duties") == 1


if __name__ == "__main__":
    run("takeover", measure)
