"""How much the client publishes from one process, to a gateway process over a real broker, all on this machine.

python -m benchmarks.gateway.client [--quick] [--json FILE]
"""

from __future__ import annotations

import resource
import tempfile
import time
from concurrent.futures import Future
from pathlib import Path

from arborcast.client import Batching, Client, FuturesClient
from benchmarks.harness import Report, run
from tests.support.broker import new_broker, settings_for
from tests.support.gateway_process import GatewayRun, gateway_run

# With its envelope the request body is about 1,000 bytes: the client adds WS-Addressing's headers.
_PAYLOAD = '<o:order xmlns:o="urn:o" id="1234567890">' + "<o:line>widget, blue, 12</o:line>" * 10 + "</o:order>"


def measure(report: Report) -> None:
    count = 4_000 if report.quick else 40_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        broker = new_broker(folder / "kafka")
        broker.start()
        try:
            with gateway_run(folder / "gateway", settings_for(broker)) as gateway:
                _publish(report, gateway, count)
        finally:
            broker.kill()


def _publish(report: Report, gateway: GatewayRun, count: int) -> None:
    columns = ("client", "notifications", "per second", "client CPU us each", "failed")
    with report.table("Notify, from one process", *columns, note="each stored by Kafka when it counts") as table:
        _run(FuturesClient(gateway.base), 500)  # compiles, connects, creates the topic
        started, used = time.monotonic(), _cpu_s()
        few = count // 10
        with Client(gateway.base) as client:
            for _ in range(few):
                client.notify("plant/line1/press", _PAYLOAD)
        elapsed = time.monotonic() - started
        table.add("Client, one call after the other", few, few / elapsed, (_cpu_s() - used) / few * 1e6, 0)
        for title, workers, batching in (
            ("FuturesClient, 4 workers", 4, None),
            ("FuturesClient, 16 workers", 16, None),
            ("FuturesClient, 16 workers, batches", 16, Batching()),
            ("FuturesClient, 1 worker, batches", 1, Batching()),
        ):
            used = _cpu_s()
            client_ = FuturesClient(gateway.base, workers=workers, batching=batching)
            rate, failed = _run(client_, count)
            table.add(title, count, rate, (_cpu_s() - used) / count * 1e6, failed)


def _run(client: FuturesClient, count: int) -> tuple[float, int]:
    """Publish so many; how many per second, and how many failed."""
    started = time.monotonic()
    with client:
        futures: list[Future[None]] = [client.notify("plant/line1/press", _PAYLOAD) for _ in range(count)]
    elapsed = time.monotonic() - started
    return count / elapsed, sum(future.exception() is not None for future in futures)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    run(measure)
