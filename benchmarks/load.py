"""The one load driver: connections in a process of its own that publish prepared bytes and count the answers.

    python -m benchmarks.load JSON          the fields of Traffic; `send` starts it

Without a rate each connection sends when its last message was answered (closed loop). With one, messages are due at
fixed times whether or not earlier ones are answered, and their latencies count from those times (open loop). Every
message carries a mark, `connection-number`, so that a receiver shows losses, repetitions and disorder.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import ssl
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, cast

import uvloop
import zmq

from arborcast.wire import frames
from arborcast.wire.frames import HEAD_BYTES, FrameKind
from benchmarks.report import percentile
from tests.support import legacy_messages as legacy
from tests.support import soap_messages as soap
from tests.support.gateway_process import ROOT

# Replaced in the prepared bytes by texts of the same length.
_MARK = b"@@@-@@@@@@@@"
_NEW = b"@new@topic@@"
_NONCE, _CREATED, _DIGEST = b"@nonce@".ljust(24, b"@"), b"@created@".ljust(20, b"@"), b"@digest@".ljust(28, b"@")

# Requests ahead of their answers on a connection; the gateway refuses more than 64. A message that waits for it counts
# from the moment at which it was due.
_MOST_AHEAD = 48

_DRAIN_S = 30.0
_HEAD = struct.Struct(">4sBBHII")
_WSSE = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-"

Edge = Literal["soap", "old", "framed", "zmq", "binary", "structured"]
"""The last two are CloudEvents."""


@dataclass(frozen=True)
class Traffic:
    """The messages and how they are sent. `size` is that of a SOAP body, or of the payload at other edges."""

    port: int
    connections: int = 16
    seconds: float = 5.0
    rate: float | None = None
    edge: Edge = "soap"
    size: int = 800
    messages: int = 1  # in a Notify
    topic: str = "bench/p"  # with the number of the connection behind it
    topics: int = 1  # of each connection, in turn
    one_topic: bool = False  # all connections publish on `topic`, in the dialect Simple
    new_topics: bool = False  # a topic of its own for each message
    priority: int = 0
    parts: int = 1  # of each message, at the old edge
    alone: bool = False  # the parts may be delivered alone
    window: int = 1  # unanswered messages of a connection in closed loop
    authorization: str = ""
    digest: str = ""  # user:password, for a UsernameToken of its own in each request
    ca: str = ""
    certificate: str = ""
    key: str = ""
    keep: bool = True  # each acknowledged mark


@dataclass
class Sent:
    """The result. `acknowledged`: mark -> seconds since the epoch at which the message was due."""

    accepted: int = 0
    per_second: float = 0.0
    refused: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    acknowledged: dict[str, float] = field(default_factory=dict)


def send(traffic: Traffic) -> Sent:
    """Run the driver to its end."""
    with sending(traffic) as sent:
        pass
    return sent


@contextmanager
def sending(traffic: Traffic) -> Iterator[Sent]:
    """Run the driver beside the block; its result is complete behind the block."""
    sent = Sent()
    with TemporaryDirectory(prefix="arborcast-load-") as folder:
        out = Path(folder) / "sent.json"
        command = [sys.executable, "-m", "benchmarks.load", json.dumps(asdict(traffic)), str(out)]
        with subprocess.Popen(command, cwd=ROOT) as process:
            try:
                yield sent
            except BaseException:
                process.kill()
                raise
            if process.wait():
                raise RuntimeError(f"the load driver ended with {process.returncode}: {traffic}")
        for name, value in json.loads(out.read_text()).items():
            setattr(sent, name, value)


class Connection(asyncio.Protocol):
    """One publisher. Answers come in the order of the requests."""

    def __init__(self, load: Load, number: int, requests: Sequence[bytes]) -> None:
        self._load = load
        self._number = number
        self._requests = requests
        self._count = 0
        self._due = 0.0
        self._begun: deque[tuple[str, float]] = deque()
        self._held: deque[float] = deque()
        self._rest = b""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.WriteTransport, transport)
        if self._load.traffic.edge == "framed":
            self._transport.write(frames.encode(FrameKind.CONNECT, 1, frames.ConnectBody()))
        else:
            self.ready.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._load.refused += self.waiting
        self._begun.clear()
        self._held.clear()

    def begin(self, due: float) -> None:
        """Send a message; its latency counts from `due`."""
        if len(self._begun) < max(_MOST_AHEAD, self._load.traffic.window):
            self._transport.write(self._next(due))
        else:
            self._held.append(due)

    @property
    def waiting(self) -> int:
        return len(self._begun) + len(self._held)

    def _next(self, due: float) -> bytes:
        parts = self._load.traffic.parts
        mark = f"{self._number:03d}-{self._count // parts:08d}"
        request = self._requests[self._count % len(self._requests)].replace(_MARK, mark.encode())
        if self._count % parts == 0:
            self._due = due
        self._count += 1
        # A message in parts is acknowledged with its last part, and due when its first one was.
        self._begun.append(("" if self._count % parts else mark, self._due))
        return self._load.filled(request)

    def data_received(self, data: bytes) -> None:
        data, now = self._rest + data, time.time()
        answers = self._frames(data) if self._load.traffic.edge == "framed" else self._statuses(data)
        for accepted in answers:
            mark, due = self._begun.popleft()
            if mark or not accepted:
                self._load.finished(mark, due, now, accepted)
            if self._held:
                self._transport.write(self._next(self._held.popleft()))
            elif self._load.refills:
                self._transport.write(self._next(now))

    def _statuses(self, data: bytes) -> list[bool]:
        *answers, self._rest = data.split(b"\r\n\r\n")
        # At the old edge a status line follows the body of the previous answer.
        return [b"HTTP/1.1 202" in each or b"HTTP/1.1 200" in each for each in answers]

    def _frames(self, data: bytes) -> list[bool]:
        at, answers = 0, []
        while len(data) - at >= HEAD_BYTES:
            _, _, kind, _, _, length = _HEAD.unpack_from(data, at)
            if len(data) - at - HEAD_BYTES < length:
                break
            at += HEAD_BYTES + length
            if kind == FrameKind.CONNECTED:
                self.ready.set_result(None)
            elif kind in (FrameKind.RECEIPT, FrameKind.ERROR):
                answers.append(kind == FrameKind.RECEIPT)
        self._rest = data[at:]
        return answers


class Load:
    """All connections of one run."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.refused = 0
        self._going = True
        self._latencies: list[float] = []
        self._acknowledged: dict[str, float] = {}
        self._password = traffic.digest.partition(":")[2].encode()
        self._prefix = b"n%04d" % (os.getpid() % 10_000)
        self._made = 0

    @property
    def refills(self) -> bool:
        """Whether an answer is followed by the next message."""
        return self._going and self.traffic.rate is None

    def filled(self, request: bytes) -> bytes:
        """The request with a new topic or a new token, where the traffic has such."""
        if self.traffic.new_topics:
            self._made += 1
            request = request.replace(_NEW, self._prefix + b"%07d" % self._made)
        if self._password:
            nonce = os.urandom(16)
            created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ").encode()
            digest = hashlib.sha1(nonce + created + self._password, usedforsecurity=False).digest()
            request = request.replace(_NONCE, base64.b64encode(nonce)).replace(_CREATED, created)
            request = request.replace(_DIGEST, base64.b64encode(digest))
        return request

    def finished(self, mark: str, due: float, now: float, accepted: bool) -> None:
        if not accepted:
            self.refused += 1
            return
        if self.traffic.keep:
            self._acknowledged[mark] = due
        # Behind the end the rest of the closed loop is answered without competition.
        if self._going or self.traffic.rate is not None:
            self._latencies.append(now - due)

    async def run(self) -> Sent:
        asked = self.traffic
        loop, tls = asyncio.get_running_loop(), _tls(asked)
        connections = []
        for number in range(asked.connections):
            made = Connection(self, number, requests_of(asked, number))
            await loop.create_connection(lambda made=made: made, "127.0.0.1", asked.port, ssl=tls)
            await made.ready
            connections.append(made)
        started = time.time()
        if asked.rate is None:
            for each in connections:
                for _ in range(asked.window):
                    each.begin(started)
            await asyncio.sleep(asked.seconds)
        else:
            for number in range(int(asked.seconds * asked.rate)):
                due = started + number / asked.rate
                if (delay := due - time.time()) > 0:
                    await asyncio.sleep(delay)
                connections[number % asked.connections].begin(due)
        self._going = False
        elapsed = time.time() - started
        end = time.time() + _DRAIN_S
        while any(each.waiting for each in connections) and time.time() < end:
            await asyncio.sleep(0.01)
        self.refused += sum(each.waiting for each in connections)
        # In open loop unanswered requests count at the end, and so does the time until their answers.
        return self._result(elapsed if asked.rate is None else time.time() - started)

    def run_zmq(self) -> Sent:
        """At the ZeroMQ edge: REQ sockets, each with one unanswered message."""
        asked, context = self.traffic, zmq.Context[zmq.Socket[bytes]]()
        poller, begun, count = zmq.Poller(), {}, 0
        payload = b"<m>" + b"x" * asked.size + b"</m>"
        for number in range(asked.connections):
            opened = context.socket(zmq.REQ)
            opened.connect(f"tcp://127.0.0.1:{asked.port}")
            poller.register(opened, zmq.POLLIN)
            opened.send_multipart((b"publish", f"{asked.topic}{number}".encode(), payload))
            begun[opened] = time.time()
        started, end = time.time(), time.time() + asked.seconds
        while begun and (ready := poller.poll(int(_DRAIN_S) * 1000)):
            for each, _ in ready:
                now = time.time()
                self._going = now < end
                self.finished(f"{count:012d}", begun.pop(each), now, each.recv_multipart()[0] == b"ok")
                count += 1
                if self._going:
                    each.send_multipart((b"publish", f"{asked.topic}{count % asked.connections}".encode(), payload))
                    begun[each] = now
        self.refused += len(begun)
        context.destroy(linger=0)
        return self._result(min(time.time(), end) - started)

    def _result(self, elapsed: float) -> Sent:
        p50, p99 = (percentile(self._latencies, share) * 1e3 for share in (0.5, 0.99))
        count = len(self._latencies)
        return Sent(count, count / elapsed, self.refused, p50, p99, self._acknowledged)


def requests_of(asked: Traffic, number: int) -> list[bytes]:
    """The prepared messages of a connection, which it sends in turn."""
    topic = asked.topic if asked.one_topic else f"{asked.topic}{number}"
    if asked.edge == "framed":
        return [frames.encode(FrameKind.PUBLISH, 2, frames.PublishBody(topic, _payload(asked.size).encode()))]
    if asked.edge == "old":
        return _old(asked, topic)
    if asked.edge in ("binary", "structured"):
        return [_event(asked, topic)]
    if asked.new_topics:
        return [_soap(asked, f"{_NEW.decode()}/p")]
    if asked.topics > 1:
        return [_soap(asked, f"{topic}/t{each}") for each in range(asked.topics)]
    return [_soap(asked, topic)]


def _payload(size: int) -> str:
    start = f'<b:m xmlns:b="urn:bench" mark="{_MARK.decode()}">'
    return f"{start}{'x' * max(0, size - len(start) - 6)}</b:m>"


def _soap(asked: Traffic, topic: str) -> bytes:
    """A Notify whose SOAP body has about `size` bytes."""
    policy = f'<p:Publication xmlns:p="urn:arborcast:policy" Priority="{asked.priority}"/>' if asked.priority else ""
    header = ""
    if asked.digest:
        header = (
            f'<w:Security xmlns:w="{_WSSE}wssecurity-secext-1.0.xsd" s:mustUnderstand="1"><w:UsernameToken>'
            f"<w:Username>{asked.digest.partition(':')[0]}</w:Username>"
            f'<w:Password Type="{_WSSE}username-token-profile-1.0#PasswordDigest">{_DIGEST.decode()}</w:Password>'
            f'<w:Nonce>{_NONCE.decode()}</w:Nonce><u:Created xmlns:u="{_WSSE}wssecurity-utility-1.0.xsd">'
            f"{_CREATED.decode()}</u:Created></w:UsernameToken></w:Security>"
        )

    def body(payload_size: int) -> bytes:
        each = soap.message(f"t:{topic}", _payload(payload_size), "Simple" if asked.one_topic else "Concrete")
        notify = soap.notify(*[each] * asked.messages).replace("</wsnt:Notify>", f"{policy}</wsnt:Notify>")
        return soap.envelope(notify, header=header)

    content = body(asked.size - (len(body(0)) - len(_payload(0)) if asked.messages == 1 else 400))
    who = f"Authorization: {asked.authorization}\r\n" if asked.authorization else ""
    return _post("/wsn/NotificationBroker", asked.port, content, f'SOAPAction: ""\r\n{who}')


def _old(asked: Traffic, topic: str) -> list[bytes]:
    """A content of `size` bytes in the older envelope, in `parts` parts."""
    content, parts = _payload(asked.size), asked.parts
    at, requests = -(-len(content) // parts), []
    for number in range(parts):
        fragment = f"1-{number < parts - 1:d}-{asked.alone:d}-{number}" if parts > 1 else "0-0-1-0"
        piece = content[number * at : (number + 1) * at]
        text = legacy.notify(topic.replace("/", ":"), piece, fragment, f"bench:{_MARK.decode()}")
        requests.append(_post("/wsnprocess/", asked.port, legacy.wsn_process(text)))
    return requests


def _event(asked: Traffic, topic: str) -> bytes:
    """A CloudEvent whose payload has `size` bytes, or a batch of them."""
    named = {"specversion": "1.0", "id": _MARK.decode(), "source": "/bench", "type": "m", "subject": topic}
    if asked.edge == "binary":
        more = "".join(f"ce-{name}: {value}\r\n" for name, value in named.items())
        return _post("/publish", asked.port, _payload(asked.size).encode(), more)
    event = {**named, "datacontenttype": "application/xml", "data": _payload(asked.size)}
    if asked.messages == 1:
        return _post("/publish", asked.port, json.dumps(event).encode(), media="application/cloudevents+json")
    batch = json.dumps([event] * asked.messages).encode()
    return _post("/publish", asked.port, batch, media="application/cloudevents-batch+json")


def _post(path: str, port: int, content: bytes, more: str = "", media: str = "text/xml; charset=utf-8") -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: {media}\r\n{more}"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def _tls(asked: Traffic) -> ssl.SSLContext | None:
    if not asked.ca:
        return None
    tls = ssl.create_default_context(cafile=asked.ca)
    if asked.certificate:
        tls.load_cert_chain(asked.certificate, asked.key)
    return tls


def main() -> None:
    load = Load(Traffic(**json.loads(sys.argv[1])))
    if load.traffic.edge == "zmq":
        sent = load.run_zmq()
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            sent = runner.run(load.run())
    Path(sys.argv[2]).write_text(json.dumps(asdict(sent)))


if __name__ == "__main__":
    main()
