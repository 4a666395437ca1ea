"""Publishers in a process of their own: each has a connection, a topic, and marks its messages with a number.

    python -m benchmarks.gateway.publishers PORT COUNT SECONDS OUT [--rate R] [--bytes 800]
                                           [--topic bench/p] [--topics 1 | --one-topic]
                                           [--old [--parts N [--alone]]]

With --topics each takes so many topics below its own in turn; with --one-topic all publish to --topic itself. With
--old they speak the older envelope, and send each message in N parts, which may be delivered alone or not.
Without a rate each publisher sends when its last message was acknowledged. With one, messages begin at fixed times in
all, whether or not earlier ones are answered. OUT gets a JSON object: mark -> the time at which it was meant to begin,
of every acknowledged message.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import uvloop

from tests.support import legacy_messages as legacy
from tests.support import soap_messages as soap

# Replaced by a mark of the same length: publisher and number.
_PLACE = b"@@@-@@@@@@@@"

# Requests ahead of their answers on a connection; the gateway refuses more than 64. A message that is held back for it
# counts from the moment at which it was meant to be sent.
_MOST_AHEAD = 48


class Publisher(asyncio.Protocol):
    """One connection. Answers come in the order of the requests."""

    def __init__(
        self,
        number: int,
        requests: Sequence[bytes],
        acknowledged: dict[str, float],
        closed_loop: bool,
        parts: int = 1,
    ) -> None:
        self._parts = parts
        self._number = number
        self._requests = requests
        self._acknowledged = acknowledged
        self._begun: deque[tuple[str, float]] = deque()
        self._held: deque[float] = deque()
        self._count = 0
        self._rest = b""
        self._closed_loop = closed_loop
        self.refused = 0
        self.going = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.WriteTransport, transport)

    def begin(self, at: float) -> None:
        if len(self._begun) < _MOST_AHEAD:
            self._send(at)
        else:
            self._held.append(at)

    def _send(self, at: float) -> None:
        mark = f"{self._number:03d}-{self._count // self._parts:08d}"
        request = self._requests[self._count % len(self._requests)]
        self._count += 1
        # A message in parts is acknowledged with its last one.
        self._begun.append(("" if self._count % self._parts else mark, at))
        self._transport.write(request.replace(_PLACE, mark.encode()))

    @property
    def waiting(self) -> int:
        return len(self._begun) + len(self._held)

    def data_received(self, data: bytes) -> None:
        *answers, self._rest = (self._rest + data).split(b"\r\n\r\n")
        for answer in answers:
            mark, at = self._begun.popleft()
            # Behind the body of the one before, in the older envelope.
            if b"HTTP/1.1 202" in answer or b"HTTP/1.1 200" in answer:
                if mark:
                    self._acknowledged[mark] = at
            else:
                self.refused += 1
            if self._closed_loop and self.going:
                self._send(time.time())
            elif self._held:
                self._send(self._held.popleft())


def request(port: int, topic: str, size: int, dialect: str = "Concrete") -> bytes:
    """A Notify whose SOAP body has about so many bytes."""

    def body(filling: int) -> bytes:
        payload = f'<b:m xmlns:b="urn:bench" mark="{_PLACE.decode()}">{"x" * filling}</b:m>'
        return soap.envelope(soap.notify(soap.message(f"t:{topic}", payload, dialect)))

    content = body(max(size - len(body(0)), 0))
    head = (
        f"POST /wsn/NotificationBroker HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: text/xml; charset=utf-8\r\n"
        f'SOAPAction: ""\r\nContent-Length: {len(content)}\r\n\r\n'
    )
    return head.encode() + content


def old_requests(port: int, topic: str, size: int, parts: int, alone: bool) -> list[bytes]:
    """The same in the older envelope, with a content of so many bytes; each message in so many parts."""
    content = f'<b:m xmlns:b="urn:bench" mark="{_PLACE.decode()}">'
    content += "x" * (size - len(content) - len("</b:m>")) + "</b:m>"
    at, requests = -(-len(content) // parts), []
    for number in range(parts):
        fragment = f"1-{number < parts - 1:d}-{alone:d}-{number}" if parts > 1 else "0-0-1-0"
        piece = content[number * at : (number + 1) * at]
        text = legacy.notify(topic.replace("/", ":"), piece, fragment, f"bench:{_PLACE.decode()}")
        body = legacy.wsn_process(text)
        head = f"POST /wsnprocess/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: text/xml; charset=utf-8\r\n"
        requests.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return requests


async def publish(
    port: int,
    count: int,
    seconds: float,
    rate: float | None,
    size: int,
    topic: str,
    topics: int = 1,
    one_topic: bool = False,
    parts: int = 0,
    alone: bool = False,
) -> tuple[dict[str, float], int]:
    loop = asyncio.get_running_loop()
    acknowledged: dict[str, float] = {}
    publishers = []
    for number in range(count):
        names = [f"{topic}{number}/t{each}" for each in range(topics)] if topics > 1 else [f"{topic}{number}"]
        if parts:
            requests = old_requests(port, f"{topic}{number}", size, parts, alone)
        elif one_topic:
            requests = [request(port, topic, size, "Simple")]
        else:
            requests = [request(port, name, size) for name in names]
        publisher = Publisher(number, requests, acknowledged, rate is None, parts or 1)
        await loop.create_connection(lambda publisher=publisher: publisher, "127.0.0.1", port)  # type: ignore[misc]
        publishers.append(publisher)
    started = time.time()
    if rate is None:
        for publisher in publishers:
            publisher.begin(started)
        await asyncio.sleep(seconds)
    else:
        for number in range(int(seconds * rate)):
            due = started + number / rate
            if (delay := due - time.time()) > 0:
                await asyncio.sleep(delay)
            publishers[number % count].begin(due)
    for publisher in publishers:
        publisher.going = False
    deadline = time.time() + 30
    while any(publisher.waiting for publisher in publishers) and time.time() < deadline:
        await asyncio.sleep(0.01)
    return acknowledged, sum(publisher.refused + publisher.waiting for publisher in publishers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--bytes", type=int, default=800)
    parser.add_argument("--topic", default="bench/p")
    parser.add_argument("--topics", type=int, default=1, help="topics of each publisher")
    parser.add_argument("--one-topic", action="store_true", help="all publish to it, in the dialect Simple")
    parser.add_argument("--old", action="store_true", help="speak the older envelope")
    parser.add_argument("--parts", type=int, default=1, help="parts of each message, in the older envelope")
    parser.add_argument("--alone", action="store_true", help="the parts may be delivered alone")
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        acknowledged, refused = runner.run(
            publish(
                options.port,
                options.count,
                options.seconds,
                options.rate,
                options.bytes,
                options.topic,
                options.topics,
                options.one_topic,
                options.parts if options.old else 0,
                options.alone,
            )
        )
    options.out.write_text(json.dumps({"acknowledged": acknowledged, "refused": refused}))


if __name__ == "__main__":
    main()
