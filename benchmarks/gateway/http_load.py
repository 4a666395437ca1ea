"""A load generator that costs little: requests are prepared bytes, answers are counted by their status lines.

    python -m benchmarks.gateway.http_load PORT REQUEST_FILE CONNECTIONS SECONDS [RATE]

Without RATE each connection sends its next request when it has its answer; with it, requests begin at fixed times
whether or not earlier ones are answered, and latencies count from those times. Prints one JSON object. A process of
its own, so that it shares no lock with what is measured.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from collections import deque
from pathlib import Path
from typing import cast

import uvloop


class Connection(asyncio.Protocol):
    """Counts answers; each is small and without a body worth reading."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._begun: deque[float] = deque()
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.WriteTransport, transport)

    def begin(self, at: float) -> None:
        """Send a request; its latency counts from `at`."""
        self._begun.append(at)
        self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        *answers, self._rest = data.split(b"\r\n\r\n")
        now = time.perf_counter()
        for answer in answers:
            accepted = answer.startswith(b"HTTP/1.1 202")
            self._load.finished(self, self._begun.popleft(), now, accepted)

    def connection_lost(self, exc: Exception | None) -> None:
        self._load.lost += len(self._begun)


class Load:
    def __init__(self, request: bytes, paced: bool, tls: ssl.SSLContext | None = None) -> None:
        self._request = request
        self._tls = tls
        self.lost = 0
        self._paced = paced
        self._latencies: list[float] = []
        self._refused = 0
        self._measuring = True

    @property
    def request(self) -> bytes:
        """What is sent next."""
        return self._request

    def finished(self, connection: Connection, begun: float, now: float, accepted: bool) -> None:
        if self._measuring:
            if accepted:
                self._latencies.append(now - begun)
            else:
                self._refused += 1
            if not self._paced:
                connection.begin(now)

    async def run(self, port: int, count: int, seconds: float, rate: float | None) -> dict[str, float]:
        loop = asyncio.get_running_loop()
        connections = [
            (await loop.create_connection(lambda: Connection(self), "127.0.0.1", port, ssl=self._tls))[1]
            for _ in range(count)
        ]
        started = time.perf_counter()
        if rate is None:
            for connection in connections:
                connection.begin(started)
            await asyncio.sleep(seconds)
        else:
            for number in range(int(seconds * rate)):
                due = started + number / rate
                delay = due - time.perf_counter()
                if delay > 0:
                    await asyncio.sleep(delay)
                connections[number % count].begin(due)
            await asyncio.sleep(0.5)
        self._measuring = False
        elapsed = min(seconds, time.perf_counter() - started)
        return self._summary(elapsed)

    def _summary(self, elapsed: float) -> dict[str, float]:
        ordered = sorted(self._latencies) or [float("nan")]

        def at(share: float) -> float:
            return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3

        return {
            "per_second": len(self._latencies) / elapsed,
            "refused": self._refused + self.lost,
            "p50_ms": at(0.5),
            "p99_ms": at(0.99),
            "max_ms": ordered[-1] * 1e3,
        }


def main() -> None:
    port, file, connections, seconds, *rest = sys.argv[1:]
    rate = float(rest[0]) if rest else None
    load = Load(Path(file).read_bytes(), rate is not None)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(load.run(int(port), int(connections), float(seconds), rate))))


if __name__ == "__main__":
    main()
