"""The CPU time of a Notify in the gateway beside that in its floor, in alternating rounds of one run.

    python -m benchmarks.peers.floor [--quick] [--json FILE]

The floor is the same HTTP server without the protocol, the same parse without use of its result, the same append of as
many bytes, and a 202 after Kafka's acknowledgement. So the ratio is the cost of the protocol.
"""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import uvicorn
import uvloop
from lxml import etree

from arborcast.core.settings import KafkaSettings
from arborcast.ingest.http.asgi import Receive, Scope, Send
from arborcast.ingest.settings import GatewaySettings
from arborcast.ingest.state.notification_log import NotificationLog
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from arborcast.wire.xml_reading import make_parser
from benchmarks.load import Traffic, send
from benchmarks.report import Report, cpu_s, run, wait_for
from benchmarks.rig import rig
from tests.support.held_port import HeldPort

_SERVE = "--serve"
_CONNECTIONS = (1, 16, 64)


def measure(report: Report) -> None:
    seconds, rounds = (1.0, 1) if report.quick else (4.0, 5)
    with rig(job=False, gateway=True) as running:
        assert running.gateway is not None
        with _floor(running.kafka) as floor:
            systems = {"gateway": (running.gateway.pid, running.gateway.port), "floor": floor}
            for connections in _CONNECTIONS:
                _compare(report, systems, connections, seconds, rounds)


def _compare(
    report: Report, systems: dict[str, tuple[int, int]], connections: int, seconds: float, rounds: int
) -> None:
    cpu: dict[str, list[float]] = {name: [] for name in systems}
    rates: dict[str, list[float]] = {name: [] for name in systems}
    for number in range(rounds + 1):
        for name, (pid, port) in systems.items():
            before = cpu_s(psutil.Process(pid))
            sent = send(Traffic(port, connections, seconds if number else 1.0, keep=False))
            assert not sent.refused, f"{name} has refused {sent.refused}"
            if number:  # the first warms up
                rates[name].append(sent.per_second)
                cpu[name].append((cpu_s(psutil.Process(pid)) - before) / max(1, sent.accepted) * 1e6)
    with report.table(
        f"Notify from {connections} connections",
        *("what", "requests/s", "CPU us each", "times the floor"),
        note=f"medians of {rounds} rounds of {seconds:g} s, taken in turns; CPU time of the process, all its threads",
    ) as table:
        for name in systems:
            ratio = statistics.median(a / b for a, b in zip(cpu[name], cpu["floor"], strict=True))
            table.add(name, statistics.median(rates[name]), statistics.median(cpu[name]), ratio)


@contextmanager
def _floor(settings: KafkaSettings) -> Iterator[tuple[int, int]]:
    """Its process and port. Its topics exist already."""
    port = HeldPort()
    command = [sys.executable, "-m", "benchmarks.peers.floor", _SERVE, settings.bootstrap_servers, settings.prefix]
    command.append(str(port.number))
    with subprocess.Popen(command) as process:
        try:
            wait_for(lambda: _answers(port.number), "the floor listens")
            yield process.pid, port.number
        finally:
            process.kill()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def serve(bootstrap_servers: str, prefix: str, port: str) -> None:
    """The floor's process."""
    settings = KafkaSettings(bootstrap_servers=bootstrap_servers, prefix=prefix)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, int(port)))


async def _serve(settings: KafkaSettings, port: int) -> None:
    log, topic = NotificationLog(settings, GatewaySettings()), TopicPath("{urn:t}plant/line1/press")
    log.start()
    while not log.connected:
        await asyncio.sleep(0.05)
    parser = make_parser()

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        etree.fromstring(body, parser)
        await log.append([Notification("0" * 32, topic, body, 1)])
        await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(
        app, "127.0.0.1", port, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False
    )
    await uvicorn.Server(config).serve()


if __name__ == "__main__":
    if sys.argv[1:2] == [_SERVE]:
        serve(*sys.argv[2:])
        os._exit(0)
    run(measure)
