"""The framed TCP edge beside SOAP at one gateway process, in one run: publishes a second, and what connections cost.

    python -m benchmarks.gateway.framed [--quick] [--json FILE]

One worker, a real broker with acks=all, the load from a process of its own, all on this machine. An idle connection
has said who it is and sends PING.
"""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from arborcast.wire import frames
from arborcast.wire.frames import HEAD_BYTES, FrameKind
from benchmarks.gateway.gateway import PAYLOAD, load, request_file
from benchmarks.harness import Report, run
from tests.support.broker import new_broker, settings_for
from tests.support.gateway_process import GatewayRun, gateway_run
from tests.support.held_port import HeldPort


def measure(report: Report) -> None:
    seconds = 2.0 if report.quick else 10.0
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), HeldPort()
        broker = new_broker(folder / "kafka")
        broker.start()
        more = f"[framed]\nport = {port.number}\n"
        try:
            with gateway_run(folder / "gateway", settings_for(broker), more=more) as gateway:
                port.for_life_of(gateway)
                _publishes(report, gateway, port.number, folder, seconds)
                _connections(report, gateway, port.number, (1, 100) if report.quick else (1, 100, 1_000, 5_000))
                _opened_and_closed(report, gateway, port.number, 500 if report.quick else 5_000)
        finally:
            broker.kill()


def _publishes(report: Report, gateway: GatewayRun, port: int, folder: Path, seconds: float) -> None:
    process = psutil.Process(gateway.pid)
    (folder / "payload").write_text(PAYLOAD)
    soap = request_file(folder, 1)
    load(gateway.port, soap, 64, 1)  # the first second compiles, connects, creates the topic
    columns = ("by", "connections", "on their way each", "published/s", "times SOAP", "p50 ms", "p99 ms", "us CPU each")
    note = "times SOAP: beside 64 connections with keep-alive at the same process; aim 2, and at least 20,000/s"
    with report.table("Publishing, one worker", *columns, note=note) as table:
        beside = 0.0
        for by, count, window in (
            ("SOAP", 64, 1),
            ("frames", 1, 1),
            ("frames", 1, 100),
            ("frames", 64, 1),
            ("frames", 64, 100),
            ("frames", 1_000, 1),
        ):
            before = sum(process.cpu_times()[:2])
            started = time.monotonic()
            if by == "SOAP":
                found = load(gateway.port, soap, count, seconds)
                beside = found["per_second"]
            else:
                found = _load(port, count, window, seconds, folder / "payload")
            used = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - started)
            rate = found["per_second"]
            cost = used / rate * 1e6 if rate else 0.0
            table.add(by, count, window, rate, rate / beside, found["p50_ms"], found["p99_ms"], cost)


def _connections(report: Report, gateway: GatewayRun, port: int, counts: tuple[int, ...]) -> None:
    process = psutil.Process(gateway.pid)
    _allow_many_files()
    columns = ("connections", "threads", "PSS MiB", "KiB each", "PING to PONG over all, p50 ms", "p99 ms")
    with report.table("Idle connections", *columns, note="KiB each: beyond the row with one") as table:
        first = 0.0
        for count in counts:
            opened = [_connected(port) for _ in range(count)]
            time.sleep(2)
            used = process.memory_full_info().pss / 2**20
            first = first or used
            waits = sorted(_ping(each) for each in opened)
            each = (used - first) * 1024 / (count - 1) if count > 1 else None
            p99 = waits[min(len(waits) - 1, int(len(waits) * 0.99))]
            table.add(count, process.num_threads(), used, each, waits[len(waits) // 2] * 1e3, p99 * 1e3)
            for one in opened:
                one.close()
            time.sleep(2)


def _opened_and_closed(report: Report, gateway: GatewayRun, port: int, count: int) -> None:
    process = psutil.Process(gateway.pid)
    with report.table("Opened and closed", "connections", "times", "PSS MiB", note="after they are gone") as table:
        for times in range(1, 11):
            opened = [_connected(port) for _ in range(count)]
            for one in opened:
                one.close()
            time.sleep(2)
            if times in (1, 2, 5, 10):
                table.add(count, times, process.memory_full_info().pss / 2**20)


def _connected(port: int) -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", port), 60)
    opened.sendall(frames.encode(FrameKind.CONNECT, 1, frames.ConnectBody()))
    assert opened.recv(HEAD_BYTES, socket.MSG_WAITALL)[5] == FrameKind.CONNECTED
    opened.recv(4_096)
    return opened


def _ping(opened: socket.socket) -> float:
    began = time.perf_counter()
    opened.sendall(frames.encode(FrameKind.PING, 1))
    assert opened.recv(HEAD_BYTES, socket.MSG_WAITALL)[5] == FrameKind.PONG
    return time.perf_counter() - began


def _allow_many_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _load(port: int, connections: int, window: int, seconds: float, payload: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.gateway.framed_load"]
    command += [str(port), str(connections), str(window), str(seconds), str(payload)]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(finished.stdout)
    return found


if __name__ == "__main__":
    run(measure)
