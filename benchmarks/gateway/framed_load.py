"""A load generator for the framed edge that costs little: frames are prepared bytes, receipts are counted.

    python -m benchmarks.gateway.framed_load PORT CONNECTIONS WINDOW SECONDS PAYLOAD_FILE

Each connection keeps so many frames without a receipt. Prints one JSON object. A process of its own, so that it shares
no lock with what is measured.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from collections import deque
from pathlib import Path
from typing import cast

import uvloop

from arborcast.wire import frames
from arborcast.wire.frames import HEAD_BYTES, FrameKind

_HEAD = struct.Struct(">4sBBHII")


class Connection(asyncio.Protocol):
    """Publishes as long as `load` measures."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._begun: deque[float] = deque()
        self._rest = b""
        self.ready = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._transport.write(frames.encode(FrameKind.CONNECT, 1, frames.ConnectBody()))

    def publish(self, count: int) -> None:
        self._begun.extend([time.perf_counter()] * count)
        self._transport.write(self._load.frame * count)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        at, receipts, now = 0, 0, time.perf_counter()
        while len(data) - at >= HEAD_BYTES:
            _, _, kind, _, _, length = _HEAD.unpack_from(data, at)
            if len(data) - at - HEAD_BYTES < length:
                break
            at += HEAD_BYTES + length
            if kind == FrameKind.CONNECTED:
                self.ready.set_result(None)
            elif kind in (FrameKind.RECEIPT, FrameKind.ERROR):
                self._load.finished(self._begun.popleft(), now, kind == FrameKind.RECEIPT)
                receipts += 1
        self._rest = data[at:]
        if receipts and self._load.measuring:
            self.publish(receipts)


class Load:
    def __init__(self, payload: bytes) -> None:
        self.frame = frames.encode(FrameKind.PUBLISH, 2, frames.PublishBody("plant/line1/press", payload))
        self.measuring = True
        self._latencies: list[float] = []
        self._refused = 0

    def finished(self, begun: float, now: float, accepted: bool) -> None:
        if self.measuring and accepted:
            self._latencies.append(now - begun)
        self._refused += not accepted

    async def run(self, port: int, count: int, window: int, seconds: float) -> dict[str, float]:
        loop = asyncio.get_running_loop()
        opened = [(await loop.create_connection(lambda: Connection(self), "127.0.0.1", port))[1] for _ in range(count)]
        await asyncio.gather(*(each.ready for each in opened))
        for each in opened:
            each.publish(window)
        started = time.perf_counter()
        await asyncio.sleep(seconds)
        self.measuring = False
        elapsed = time.perf_counter() - started
        ordered = sorted(self._latencies) or [0.0]
        return {
            "per_second": len(self._latencies) / elapsed,
            "p50_ms": ordered[len(ordered) // 2] * 1e3,
            "p99_ms": ordered[int(len(ordered) * 0.99)] * 1e3,
            "refused": self._refused,
        }


def main() -> None:
    port, count, window, seconds, file = sys.argv[1:]
    load = Load(Path(file).read_bytes())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(load.run(int(port), int(count), int(window), float(seconds)))))


if __name__ == "__main__":
    main()
