"""How much the gateway process takes in, over a real broker with acks=all, everything on this machine.

python -m benchmarks.gateway.gateway [--quick] [--json FILE]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from arborcast.client import Client
from benchmarks.harness import Report, run
from tests.support import soap_messages as soap
from tests.support.broker import new_broker, settings_for
from tests.support.gateway_process import GatewayRun, gateway_run

# With its envelope the request body is about 800 bytes.
PAYLOAD = '<o:order xmlns:o="urn:o" id="1234567890">' + "<o:line>widget, blue, 12</o:line>" * 10 + "</o:order>"


def measure(report: Report) -> None:
    seconds = 2 if report.quick else 10
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        broker = new_broker(folder / "kafka")
        broker.start()
        try:
            settings = settings_for(broker)
            with gateway_run(folder / "gateway", settings) as gateway:
                idle = _resident(gateway)
                _notify(report, gateway, folder, seconds)
                _subscribe(report, gateway, 200 if report.quick else 3_000)
            with gateway_run(folder / "fresh", settings) as gateway:
                _memory(report, gateway, folder, idle, 50_000 if report.quick else 1_000_000)
            with gateway_run(folder / "two", settings, workers=2) as gateway:
                _workers(report, gateway, folder, seconds)
        finally:
            broker.kill()


def _notify(report: Report, gateway: GatewayRun, folder: Path, seconds: int) -> None:
    process = psutil.Process(gateway.pid)
    columns = (
        "load",
        "body bytes",
        "requests/s",
        "messages/s",
        "p50 ms",
        "p99 ms",
        "refused",
        "gateway CPU",
        "RSS MiB",
    )
    with report.table(
        "Notify, accepted", *columns, note="keep-alive; answered 202 after Kafka's acknowledgement"
    ) as table:
        load(gateway.port, request_file(folder, 1), 64, 1)  # the first second compiles, connects, creates the topic
        for shape, messages, connections, rate in (
            ("64 connections", 1, 64, None),
            ("64 connections", 10, 64, None),
            ("1 connection", 1, 1, None),
            ("1,000/s", 1, 64, 1_000),
            ("4,000/s", 1, 64, 4_000),
        ):
            file = request_file(folder, messages)
            before = sum(process.cpu_times()[:2])
            started = time.monotonic()
            result = load(gateway.port, file, connections, seconds, rate)
            used = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - started)
            table.add(
                shape,
                len(file.read_bytes().partition(b"\r\n\r\n")[2]),
                result["per_second"],
                result["per_second"] * messages,
                result["p50_ms"],
                result["p99_ms"],
                int(result["refused"]),
                f"{used:.0%}",
                process.memory_info().rss / 2**20,
            )


def _subscribe(report: Report, gateway: GatewayRun, count: int) -> None:
    def some(worker: int) -> None:
        with Client(gateway.base) as client:
            for number in range(count // 16):
                client.subscribe(f"a/b{number % 50}", to=f"http://127.0.0.1:9/{worker}/{number}")

    with report.table(
        "Subscribe, durable", "clients", "per second", note="each answered after its own record was read"
    ) as table:
        started = time.monotonic()
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(some, range(16)))
        table.add(16, count // 16 * 16 / (time.monotonic() - started))


def _memory(report: Report, gateway: GatewayRun, folder: Path, idle: float, count: int) -> None:
    """Resident memory while many requests pass."""
    with report.table("Memory", "requests", "RSS MiB", note="first row: idle before its first request") as table:
        table.add(0, idle)
        file, sent = request_file(folder, 1), 0
        while sent < count:
            share = count / 10
            result = load(gateway.port, file, 64, 5 if not report.quick else 1)
            sent += int(result["per_second"] * (5 if not report.quick else 1))
            if sent >= share * (len(table.rows)):
                table.add(sent, _resident(gateway))


def _workers(report: Report, gateway: GatewayRun, folder: Path, seconds: int) -> None:
    with report.table(
        "Two workers", "load", "requests/s", "p50 ms", "p99 ms", note="helps only where there are cores to spare"
    ) as table:
        file = request_file(folder, 1)
        load(gateway.port, file, 64, 1)
        result = load(gateway.port, file, 64, seconds)
        table.add("64 connections", result["per_second"], result["p50_ms"], result["p99_ms"])


def _resident(gateway: GatewayRun) -> float:
    return float(psutil.Process(gateway.pid).memory_info().rss / 2**20)


def request_file(folder: Path, messages: int) -> Path:
    body = soap.envelope(soap.notify(*[soap.message("t:plant/line1/press", PAYLOAD)] * messages))
    head = (
        "POST /wsn/NotificationBroker HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: text/xml; charset=utf-8\r\n"
        f'SOAPAction: ""\r\nContent-Length: {len(body)}\r\n\r\n'
    )
    file = folder / f"request-{messages}"
    file.write_bytes(head.encode() + body)
    return file


def load(port: int, file: Path, connections: int, seconds: float, rate: float | None = None) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.gateway.http_load", str(port), str(file)]
    command += [str(connections), str(seconds), *([str(rate)] if rate else [])]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, float] = json.loads(finished.stdout)
    return result


if __name__ == "__main__":
    run(measure)
