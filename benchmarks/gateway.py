"""How much one gateway process takes in, over a real broker with acks=all, without a dispatch job.

    python -m benchmarks.gateway [CASE ...]

Cases: notify (connections, messages in a request, rates), floor (a bare program beside it), edges, auth (side by side),
new-topics, overload, subscribe, pull (pull points), streams (of events), client (the Python client), cameras (CPU and
memory of conversations with them on the event loop; the logs are lists). Without: notify. Variants that are compared
take turns, so that other work on the machine falls on all of them alike.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import json
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jwt
import msgspec
import psutil
import requests
from cryptography.hazmat.primitives.asymmetric import ec

from arborcast.client import Batching, Client, FuturesClient
from arborcast.core.eventlog.topics import PULL_LOG
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.security.keyring import KeyRing
from arborcast.core.settings import KafkaSettings
from arborcast.ingest.access.users_file import made, write_users
from arborcast.ingest.cameras.worker import CameraWorker
from arborcast.ingest.operations.pull_points import PULL
from arborcast.topic_model.projections.cameras import Cameras
from arborcast.topic_model.records.control import CameraRecord
from arborcast.topic_model.records.pull import StoredMessage, encode
from benchmarks.load import Sent, Traffic, send, sending
from benchmarks.peers.floor import running_floor
from benchmarks.report import Report, cpu_s, percentile, resident, run
from benchmarks.rig import started_broker
from tests.support import soap_messages as soap
from tests.support.broker import settings_for
from tests.support.camera import Camera
from tests.support.certificates import make_certificates
from tests.support.gateway_parts import GatewayParts
from tests.support.gateway_process import GatewayRun, gateway_run
from tests.support.held_port import HeldPort
from tests.support.outbound import THIS_MACHINE
from tests.support.zmq_edges import edges_of

EDGES = ("soap", "old", "framed", "zmq", "binary", "structured")

_PASSWORD = "a password of some length"  # noqa: S105  # of users that exist here only
_ISSUER, _AUDIENCE = "https://id.example", "arborcast"
_PAYLOAD = '<o:order xmlns:o="urn:o">' + "<o:line>widget, blue, 12</o:line>" * 10 + "</o:order>"


@dataclass
class Variant:
    """One way to publish: the traffic and the processes that take it."""

    name: str
    traffic: Traffic
    processes: tuple[psutil.Process, ...]


@dataclass
class Bench:
    """A broker, and gateways as the cases need them."""

    kafka: KafkaSettings
    folder: Path
    seconds: float
    rounds: int
    stack: ExitStack

    def gateway(self, name: str = "plain", **how: Any) -> GatewayRun:
        return self.stack.enter_context(gateway_run(self.folder / name, self.kafka, forked=False, **how))

    def variant(self, name: str, gateway: GatewayRun, **traffic: Any) -> Variant:
        asked = {"connections": 64, "seconds": self.seconds, "keep": False} | traffic
        return Variant(name, Traffic(gateway.port, **asked), (psutil.Process(gateway.pid),))

    def edge(self, name: str, **traffic: Any) -> Variant:
        """A gateway with one edge. `framed` and `zmq` have a port of their own."""
        if name == "framed":
            port = HeldPort()
            gateway = self.gateway(name, more=f"[framed]\nport = {port.number}\n")
            port.for_life_of(gateway)
            found = self.variant(name, gateway, edge=name, **traffic)
            return replace(found, traffic=replace(found.traffic, port=port.number))
        if name == "zmq":
            edges = self.stack.enter_context(edges_of(self.folder / name, self.kafka))
            found = self.variant(name, edges.gateway, edge=name, **traffic)
            port_of_asked = int(edges.address("requests").rpartition(":")[2])
            processes = (*found.processes, psutil.Process(edges.pid))
            return replace(found, traffic=replace(found.traffic, port=port_of_asked), processes=processes)
        return self.variant(name, self.gateway(name), edge=name, **traffic)

    def auth(self) -> list[Variant]:
        """The ways to authenticate, all sending the same notification."""
        certificates = make_certificates(self.folder)
        users = {"press": made("press", _PASSWORD, frozenset(), keep_clear=True)}
        users["client"] = made("client", _PASSWORD, frozenset(), keep_clear=False)
        write_users(users, self.folder / "users.toml")
        key = ec.generate_private_key(ec.SECP256R1())
        public = jwt.get_algorithm_by_name("ES256").to_jwk(key.public_key(), as_dict=True)
        (self.folder / "jwks.json").write_text(json.dumps({"keys": [public]}))
        claims = {"sub": "press", "iss": _ISSUER, "aud": _AUDIENCE, "exp": time.time() + 86_400}
        access = (
            f'[access]\nmethods = "basic, bearer, token, certificate"\nusers_file = "{self.folder / "users.toml"}"\n'
            f'token_nonces = 10000000\njwks_file = "{self.folder / "jwks.json"}"\njwt_issuer = "{_ISSUER}"\n'
            f'jwt_audience = "{_AUDIENCE}"\n'
        )
        plain, secured = self.gateway(), self.gateway("tls", tls=certificates)
        # A certificate of a client is known under TLS only.
        asking = self.gateway("asking", more=access.replace(", certificate", ""))
        asking_tls = self.gateway("asking-tls", tls=certificates, more=access)
        tls = {"ca": certificates.authority}
        shown = tls | {"certificate": certificates.certificate("client"), "key": certificates.key("client")}
        basic = "Basic " + base64.b64encode(f"press:{_PASSWORD}".encode()).decode()
        return [
            self.variant("none", plain),
            self.variant("basic", asking, authorization=basic),
            self.variant("bearer", asking, authorization="Bearer " + jwt.encode(claims, key, "ES256")),
            self.variant("digest", asking, digest=f"press:{_PASSWORD}"),
            self.variant("tls", secured, **tls),
            self.variant("certificate", asking_tls, **shown),
        ]

    def compare(self, report: Report, title: str, variants: list[Variant]) -> None:
        """Rounds of all variants in turns; medians, and ratios to the first."""
        found: dict[str, list[tuple[Sent, float]]] = {each.name: [] for each in variants}
        for each in variants:
            send(replace(each.traffic, seconds=1))
        for _ in range(self.rounds):
            for each in variants:
                before = cpu_s(*each.processes)
                result = send(each.traffic)
                used = (cpu_s(*each.processes) - before) / max(1, result.accepted) * 1e6
                found[each.name].append((result, used))
        first = found[variants[0].name]
        columns = ("requests/s", "times the first", "p50 ms", "p99 ms", "refused", "CPU us each", "CPU, ratio")
        note = f"medians of {self.rounds} rounds of {self.seconds:g} s in turns; accepted when Kafka has acknowledged"
        with report.table(title, "variant", *columns, "RSS MiB", note=note) as table:
            for each in variants:
                sent = [one for one, _ in found[each.name]]
                pairs = list(zip(found[each.name], first, strict=True))
                table.add(
                    each.name,
                    statistics.median(one.per_second for one in sent),
                    statistics.median(a.per_second / b.per_second for (a, _), (b, _) in pairs),
                    statistics.median(one.p50_ms for one in sent),
                    statistics.median(one.p99_ms for one in sent),
                    sum(one.refused for one in sent),
                    statistics.median(used for _, used in found[each.name]),
                    statistics.median(a / b for (_, a), (_, b) in pairs),
                    sum(one.memory_info().rss for one in each.processes) / 2**20,
                )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))


def measure(report: Report) -> None:
    seconds, rounds = (1.0, 1) if report.quick else (5.0, 4)
    for case in report.options.cases or ["notify"]:
        with started_broker() as (broker, folder), ExitStack() as stack:
            CASES[case](report, Bench(settings_for(broker), folder, seconds, rounds, stack))


def _notify(report: Report, bench: Bench) -> None:
    gateway = bench.gateway()
    shapes: Mapping[str, dict[str, Any]] = {
        "64 connections": {},
        "64 connections, ten messages each": {"messages": 10, "size": 5_000},
        "1 connection": {"connections": 1},
        "1,000/s": {"rate": 1_000.0},
        "4,000/s": {"rate": 4_000.0},
    }
    bench.compare(report, "Notify", [bench.variant(name, gateway, **how) for name, how in shapes.items()])


def _floor(report: Report, bench: Bench) -> None:
    """The ratio of the CPU times is the cost of the protocol."""
    gateway = bench.gateway()
    pid, port = bench.stack.enter_context(running_floor(bench.kafka))
    for connections in (1, 16, 64):
        variant = bench.variant("gateway", gateway, connections=connections)
        floor = Variant("floor", replace(variant.traffic, port=port), (psutil.Process(pid),))
        bench.compare(report, f"Notify from {connections} connections", [floor, variant])


def _edges(report: Report, bench: Bench) -> None:
    variants = [bench.edge(each) for each in EDGES]
    framed = next(each for each in variants if each.name == "framed")
    wide = replace(framed, name="framed, 100 on their way", traffic=replace(framed.traffic, window=100))
    batch = replace(variants[-1], name="structured, ten events each")
    batch = replace(batch, traffic=replace(batch.traffic, messages=10))
    bench.compare(report, "64 connections at each edge", [*variants, wide, batch])


def _auth(report: Report, bench: Bench) -> None:
    bench.compare(report, "Notify from 64 connections", bench.auth())


def _new_topics(report: Report, bench: Bench) -> None:
    """A new topic is a record in the control log, which the gateway reads back before it accepts."""
    for bound in ("MAXIMUM", "NEW_PER_MINUTE"):
        os.environ[f"ARBORCAST_TOPICS_{bound}"] = "10000000"  # the limits are not measured
    gateway = bench.gateway()
    for shape, how in (("100/s", {"connections": 16, "rate": 100.0}), ("64 connections", {})):
        known = bench.variant("known topics", gateway, **how)
        new = bench.variant("a new topic each", gateway, new_topics=True, **how)
        bench.compare(report, f"first and later notifications on a topic, {shape}", [known, new])


def _overload(report: Report, bench: Bench) -> None:
    """Ten times the connections; a user beyond its rate beside one below it."""
    gateway = bench.gateway()
    variants = [bench.variant(f"{count} connections", gateway, connections=count) for count in (64, 640)]
    bench.compare(report, "ten times the connections", variants)
    users = {name: made(name, _PASSWORD, frozenset(), keep_clear=False) for name in ("loud", "quiet")}
    write_users(users, bench.folder / "two.toml")
    more = f'[access]\nmethods = "basic"\nusers_file = "{bench.folder / "two.toml"}"\n'
    limited = bench.gateway("limited", more=f"{more}[limits]\nrequests_per_s = 200\nrequest_burst = 200\n")

    def user(name: str, connections: int, rate: float) -> Traffic:
        text = base64.b64encode(f"{name}:{_PASSWORD}".encode()).decode()
        return Traffic(limited.port, connections, bench.seconds, rate, authorization=f"Basic {text}", keep=False)

    columns = ("user", "accepted/s", "refused", "p50 ms", "p99 ms")
    with report.table("one user sends ten times its 200/s, another 50/s", *columns) as table:
        alone = send(user("quiet", 4, 50.0))
        with sending(user("loud", 64, 2_000.0)) as loud:
            beside = send(user("quiet", 4, 50.0))
        for name, sent in (("quiet, alone", alone), ("loud", loud), ("quiet, beside it", beside)):
            table.add(name, sent.per_second, sent.refused, sent.p50_ms, sent.p99_ms)


def _subscribe(report: Report, bench: Bench) -> None:
    gateway, count = bench.gateway(), 200 if report.quick else 3_000

    def some(worker: int) -> None:
        with Client(gateway.base) as client:
            for number in range(count // 16):
                client.subscribe(f"a/b{number % 50}", to=f"http://127.0.0.1:9/{worker}/{number}")

    note = "each answered after its own record was read"
    with report.table("Subscribe, durable", "clients", "per second", note=note) as table:
        started = time.monotonic()
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(some, range(16)))
        table.add(16, count // 16 * 16 / (time.monotonic() - started))


class _Point:
    """A pull point of a running gateway."""

    def __init__(self, gateway: GatewayRun, writer: LogWriter) -> None:
        body = soap.envelope("<wsnt:CreatePullPoint/>")
        answer = requests.post(f"{gateway.base}/wsn/CreatePullPoint", body, timeout=60)
        self._url = answer.text.partition("Address>")[2].partition("<")[0]
        self._writer = writer

    def store(self, count: int) -> None:
        _store(self._writer, [self._url.rpartition("/")[2]] * count)

    def pull(self, session: requests.Session, maximum: int, wait: str = "PT0S") -> int:
        """The number of messages in one answer to GetMessages."""
        body = (
            f'<wsnt:GetMessages xmlns:p="{PULL}" p:Wait="{wait}"><wsnt:MaximumNumber>{maximum}</wsnt:MaximumNumber>'
            "</wsnt:GetMessages>"
        )
        answer = session.post(self._url, soap.envelope(body))
        answer.raise_for_status()
        return answer.content.count(b"</wsnt:NotificationMessage>")

    def drain(self, clients: int, maximum: int) -> float:
        """Seconds until so many clients have fetched all of it."""

        def fetch(_: int) -> None:
            with requests.Session() as session:
                while self.pull(session, maximum):
                    pass

        started = time.perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(fetch, range(clients)))
        return time.perf_counter() - started


def _store(writer: LogWriter, names: Sequence[str], size: int = 500) -> float:
    """Append a message for each of these pull points, as the dispatch job does. The time at which it began."""
    began, message = time.perf_counter(), soap.message(payload=f"<n>{'x' * size}</n>")
    opened = message.replace("<wsnt:NotificationMessage", f'<wsnt:NotificationMessage xmlns:wsnt="{soap.WSNT}"')
    stored = StoredMessage(opened.encode(), "n")
    for first in range(0, len(names), 1_000):
        writer.append_encoded([encode(name, stored) for name in names[first : first + 1_000]])
    return began


def _pull(report: Report, bench: Bench) -> None:
    count = 2_000 if report.quick else 20_000
    gateway = bench.gateway(pull_messages=1_000_000, pull_bytes=2**30)
    writer = LogWriter(bench.kafka, PULL_LOG)
    bench.stack.callback(writer.close)
    point, waits = _Point(gateway, writer), []
    with requests.Session() as session:
        for _ in range(count // 100):
            thread = threading.Thread(target=lambda: point.pull(session, 1, "PT20S"))
            thread.start()
            time.sleep(0.02)  # so that it waits
            started = time.perf_counter()
            point.store(1)
            thread.join()
            waits.append((time.perf_counter() - started) * 1e3)
    note = "from the append to the answer"
    with report.table("a client that waits", "times", "p50 ms", "p99 ms", note=note) as table:
        table.add(len(waits), percentile(waits, 0.5), percentile(waits, 0.99))
    with report.table("fetching", "clients", "messages in an answer", "messages/s") as table:
        for clients, maximum in ((1, 256), (4, 256), (1, 1), (8, 1)):
            messages = count if maximum > 1 else count // 20
            point.store(messages)
            table.add(clients, maximum, messages / point.drain(clients, maximum))
    with report.table("a start", "messages that wait", "seconds until ready", "RSS MiB") as table:
        for waiting in (0, count):
            point.store(waiting)
            gateway.kill()
            started = time.perf_counter()
            gateway.start()
            taken = time.perf_counter() - started
            table.add(waiting, taken, psutil.Process(gateway.pid).memory_info().rss / 2**20)


def _streams(report: Report, bench: Bench) -> None:
    """Streams of one process of clients. Their messages are appended as the dispatch job does."""
    count, silent = (200, 50) if report.quick else (10_000, 1_000)
    gateway = bench.gateway(max_connections=count + silent + 10)
    writer = LogWriter(bench.kafka, PULL_LOG)
    bench.stack.callback(writer.close)
    process = psutil.Process(gateway.pid)

    async def opened(number: int) -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter]:
        reader, sender = await asyncio.open_connection("127.0.0.1", gateway.port, limit=4_096)
        sender.write(f"GET /events/a/s{number} HTTP/1.1\r\nHost: 127.0.0.1:{gateway.port}\r\n\r\n".encode())
        assert b"200" in await reader.readuntil(b"\nid: ")
        return (await reader.readuntil(b"\n\n")).decode().strip(), reader, sender

    async def open_all(number: int) -> list[tuple[str, asyncio.StreamReader, asyncio.StreamWriter]]:
        some = [await asyncio.gather(*map(opened, range(first, first + 50))) for first in range(0, number, 50)]
        return [each for group in some for each in group]

    async def arrived(since: float, reader: asyncio.StreamReader) -> float:
        await reader.readuntil(b'"specversion"')
        return (time.perf_counter() - since) * 1e3

    async def streams() -> None:
        before, started = process.memory_info().rss, time.perf_counter()
        found = await open_all(count)
        opening = count / (time.perf_counter() - started)
        kib = (process.memory_info().rss - before) / 1024 / count
        used = cpu_s(process)
        await asyncio.sleep(30)
        idle = (cpu_s(process) - used) / 30 * 100
        waits = [await arrived(_store(writer, [name]), reader) for name, reader, _ in found[:: count // 200]]
        started = time.perf_counter()
        every = [asyncio.ensure_future(arrived(started, reader)) for _, reader, _ in found]
        await asyncio.to_thread(_store, writer, [name for name, *_ in found])
        all_ms = await asyncio.gather(*every)
        name, reader, _ = found[0]
        started = _store(writer, [name] * 1_000)
        for _ in range(1_000):
            last_ms = await arrived(started, reader)
        times = *(percentile(each, share) for each in (waits, all_ms) for share in (0.5, 0.99)), 1e6 / last_ms
        # Of clients that read nothing more, each with 400 kB behind.
        before = process.memory_info().rss
        quiet = await open_all(silent)
        _store(writer, [name for name, *_ in quiet] * 4, 100_000)
        await asyncio.sleep(10)
        table.add(count, opening, kib, idle, *times, (process.memory_info().rss - before) / 2**20)
        for _, _, sender in found + quiet:
            sender.transport.abort()

    columns = ("streams", "opened/s", "KiB each", "idle, % of a core", "p50 ms", "p99 ms")
    more = ("one to each p50 ms", "p99 ms of these", "messages/s of one", f"MiB of {silent:,} that do not read")
    with report.table("event streams", *columns, *more, note="ms: from the append to the client") as table:
        asyncio.run(streams())


def _client(report: Report, bench: Bench) -> None:
    gateway, count = bench.gateway(), 2_000 if report.quick else 40_000

    def publish(client: FuturesClient, number: int) -> None:
        with client:
            futures = [client.notify("plant/line1/press", _PAYLOAD) for _ in range(number)]
        assert not any(each.exception() for each in futures)

    publish(FuturesClient(gateway.base), 500)
    process = psutil.Process()
    with report.table("Notify with the Python client, one process", "client", "per second", "CPU us each") as table:
        ways: tuple[tuple[str, int, Batching | None], ...] = (
            ("Client", 0, None),
            ("FuturesClient, 16 workers", 16, None),
            ("FuturesClient, 16 workers, batches", 16, Batching()),
        )
        for name, workers, batching in ways:
            number, started, used = count if workers else count // 10, time.monotonic(), cpu_s(process)
            if workers:
                publish(FuturesClient(gateway.base, workers=workers, batching=batching), number)
            else:
                with Client(gateway.base) as client:
                    for _ in range(number):
                        client.notify("plant/line1/press", _PAYLOAD)
            table.add(name, number / (time.monotonic() - started), (cpu_s(process) - used) / number * 1e6)


_CAMERA_EVERY_S = 10.0
_KEYS = KeyRing({"k": b"k" * 32})


def _cameras(report: Report, _: Bench) -> None:
    count, seconds = (10, 2.0) if report.quick else (500, 60.0)
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_run_cameras, args=(theirs, count), daemon=True)
    process.start()
    title = f"conversations with cameras, an event of each in {_CAMERA_EVERY_S:g} s"
    try:
        with report.table(title, "cameras", "MB", "CPU %", "requests/s", "events/s") as table:
            table.add(count, *asyncio.run(_conversations(ours, seconds)))
    finally:
        process.kill()


def _run_cameras(pipe: Connection, count: int) -> None:
    """The cameras of a process. It sends their addresses, and the number of their requests for each message."""
    with ExitStack() as stack:
        cameras = [stack.enter_context(Camera()) for _ in range(count)]
        pipe.send([each.url for each in cameras])
        for number in itertools.count():
            for camera in cameras:
                if pipe.poll(_CAMERA_EVERY_S / count):
                    pipe.recv()
                    pipe.send(sum(len(each.operations) for each in cameras))
                camera.emit(value=str(number))


async def _conversations(cameras: Connection, seconds: float) -> tuple[float, ...]:
    parts, projection, process, sealed = GatewayParts(outbound=THIS_MACHINE), Cameras(), psutil.Process(), []
    parts.control.also.append(projection)
    parts.gateway.now = lambda: datetime.now(UTC)
    before = resident()
    for number, url in enumerate(cameras.recv()):
        camera = CameraRecord(f"c{number}", url, f"k{number}", "viewer")
        sealed.append(msgspec.structs.replace(camera, sealed=_KEYS.seal(b"secret", camera.sealing_context())))
    await parts.control.commit(sealed)
    worker = CameraWorker(parts.gateway, projection, _KEYS)
    task = asyncio.create_task(worker.run())

    def requests_so_far() -> int:
        cameras.send(None)
        return int(cameras.recv())

    while sum(each.conversation.status.state == "connected" for each in worker.sessions.values()) < len(sealed):
        await asyncio.sleep(0.1)
    await asyncio.sleep(10)  # the first state of each property
    requested, events = requests_so_far(), len(parts.notifications.accepted)
    used, began = cpu_s(process), time.monotonic()
    await asyncio.sleep(seconds)
    taken, used = time.monotonic() - began, cpu_s(process) - used
    requested, events = requests_so_far() - requested, len(parts.notifications.accepted) - events
    grown = (resident() - before) / 1e6
    task.cancel()
    return grown, used / taken * 100, requested / taken, events / taken


CASES: Mapping[str, Callable[[Report, Bench], None]] = {
    "notify": _notify,
    "floor": _floor,
    "edges": _edges,
    "auth": _auth,
    "new-topics": _new_topics,
    "overload": _overload,
    "subscribe": _subscribe,
    "pull": _pull,
    "streams": _streams,
    "client": _client,
    "cameras": _cameras,
}

if __name__ == "__main__":
    run(measure, options)
