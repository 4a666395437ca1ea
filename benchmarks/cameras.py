"""Cameras in one gateway: CPU and memory of their conversations on the event loop.

    python -m benchmarks.cameras [--cameras 500] [--seconds 60] [--every 10]

The cameras are a process of their own. They have an event every --every seconds. The logs are lists: the figures are
those of the conversations and of publishing, without Kafka.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import re
import time
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection

import msgspec
import psutil
import requests

from arborcast.core.security.keyring import KeyRing
from arborcast.ingest.cameras.worker import CameraWorker
from arborcast.topic_model.projections.cameras import Cameras
from arborcast.topic_model.records.control import CameraRecord
from benchmarks.report import Report, cpu_s, resident, run
from tests.support.camera import envelope, event
from tests.support.gateway_parts import GatewayParts
from tests.support.outbound import THIS_MACHINE

_KEYS = KeyRing({"k": b"k" * 32})

_WAIT = re.compile(rb"Timeout>PT([0-9]+)S")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cameras", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=10.0)


def measure(report: Report) -> None:
    cameras, length_s, every_s = report.options.cameras, report.options.seconds, report.options.every
    if report.quick:
        cameras, length_s = 10, 2.0
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_cameras, args=(theirs, every_s), daemon=True)
    process.start()
    port: int = ours.recv()
    columns = ("cameras", "MB", "CPU %", "requests/s", "events/s")
    try:
        with report.table("Conversations with cameras", *columns) as table:
            table.add(*asyncio.run(_worker(port, cameras, length_s)))
    finally:
        process.kill()


async def _worker(port: int, cameras: int, length_s: float) -> tuple[int | float, ...]:
    parts, projection, process = GatewayParts(outbound=THIS_MACHINE), Cameras(), psutil.Process()
    parts.control.folds = [*parts.control.folds, projection]
    parts.gateway.now = lambda: datetime.now(UTC)
    before = resident()
    sealed = []
    for number in range(cameras):
        made = CameraRecord(f"c{number}", f"http://127.0.0.1:{port}/c{number}/device_service", f"k{number}", "viewer")
        sealed.append(msgspec.structs.replace(made, sealed=_KEYS.seal(b"secret", made.sealing_context())))
    await parts.control.commit(sealed)
    worker = CameraWorker(parts.gateway, projection, _KEYS)
    task = asyncio.create_task(worker.run())
    while sum(each.conversation.status.state == "connected" for each in worker.sessions.values()) < cameras:
        await asyncio.sleep(0.1)
    await asyncio.sleep(10)  # the first state of each property
    events, used, began = len(parts.notifications.accepted), cpu_s(process), time.monotonic()
    asked = _asked(port)
    await asyncio.sleep(length_s)
    took = time.monotonic() - began
    share = (cpu_s(process) - used) / took * 100
    asked, events = _asked(port) - asked, len(parts.notifications.accepted) - events
    grown = (resident() - before) / 1e6
    task.cancel()
    return cameras, grown, share, asked / took, events / took


def _asked(port: int) -> int:
    return int(requests.get(f"http://127.0.0.1:{port}/count", timeout=10).text)


def _cameras(pipe: Connection, every_s: float) -> None:
    asyncio.run(_serve(pipe, every_s))


async def _serve(pipe: Connection, every_s: float) -> None:
    asked = 0
    began, given = time.monotonic(), dict[str, int]()

    async def answer(name: str, operation: str, body: bytes) -> str:
        base = f"http://127.0.0.1:{port}/{name}"
        now = datetime.now(UTC)
        times = (
            f"<wsnt:CurrentTime>{now:%Y-%m-%dT%H:%M:%SZ}</wsnt:CurrentTime><wsnt:TerminationTime>"
            f"{now + timedelta(seconds=120):%Y-%m-%dT%H:%M:%SZ}</wsnt:TerminationTime>"
        )
        match operation:
            case "GetCapabilities":
                return f"<tt:Events><tt:XAddr>{base}/events</tt:XAddr></tt:Events>"
            case "CreatePullPointSubscription":
                address = f"<wsa5:Address>{base}/subscriptions/1</wsa5:Address>"
                return f"<tev:SubscriptionReference>{address}</tev:SubscriptionReference>{times}"
            case "PullMessages":
                found = _WAIT.search(body)
                until = time.monotonic() + (float(found[1]) if found else 8.0)
                # Each camera at its own time.
                phase = hash(name) % 1000 / 1000 * every_s
                while time.monotonic() < until:
                    number = int((time.monotonic() - began + phase) / every_s)
                    if number > given.setdefault(name, number):
                        given[name] = number
                        return f"<tev:PullMessagesResponse>{event(value=str(number))}</tev:PullMessagesResponse>"
                    await asyncio.sleep(max(0.01, min(until - time.monotonic(), 0.5)))
                return "<tev:PullMessagesResponse/>"
        return times

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                break
            length = re.search(rb"(?i)content-length: *([0-9]+)", head)
            body = await reader.readexactly(int(length[1])) if length else b""
            if head.startswith(b"GET"):
                content = str(asked).encode()
            else:
                asked += 1
                operation = re.search(
                    rb"<(?:s:Body><)?(?:\w+:)?(Get\w+|Create\w+|Pull\w+|Renew)", body[body.find(b"Body") :]
                )
                name = head.split(b"/", 2)[1].decode()
                content = envelope(await answer(name, operation[1].decode() if operation else "", body))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content))
            if b"onnection: close" in head:
                break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1_000)
    port = server.sockets[0].getsockname()[1]
    pipe.send(port)
    await server.serve_forever()


if __name__ == "__main__":
    run(measure, options)
