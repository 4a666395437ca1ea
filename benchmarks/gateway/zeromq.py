"""The ZeroMQ edges beside raw sockets of the same kind, in one run.

    python -m benchmarks.gateway.zeromq [--quick] [--json FILE]

Raw is PUSH to PULL between two processes with nothing in between: what no broker that keeps messages comes near. The
edge's messages are in Kafka, with acks=all, when they count. A slow joiner is a SUB that does not ask `ready`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import zmq

from benchmarks.harness import Report, run
from tests.support.broker import new_broker, settings_for
from tests.support.zmq_edges import Edges, edges_of

_PAYLOAD = b"<m>" + b"x" * 1_017 + b"</m>"

_RAW = """
import sys, time, zmq
pull = zmq.Context().socket(zmq.PULL)
print(pull.bind_to_random_port("tcp://127.0.0.1"), flush=True)
count = int(sys.argv[1])
pull.recv_multipart()
began = time.perf_counter()
for _ in range(count - 1):
    pull.recv_multipart()
print(time.perf_counter() - began, flush=True)
"""


def measure(report: Report) -> None:
    count = 20_000 if report.quick else 1_000_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        broker = new_broker(folder / "kafka")
        broker.start()
        try:
            with edges_of(folder / "edges", settings_for(broker)) as edges:
                _publishing(report, edges, count)
                _asking(report, edges, 100 if report.quick else 2_000)
        finally:
            broker.kill()


def _publishing(report: Report, edges: Edges, count: int) -> None:
    columns = ("by", "messages", "a second", "of raw", "us CPU each, edge", "gateway", "lost")
    with report.table("PUSH of 1 KiB", *columns, note="edge: in the log; at least 20,000/s a core are asked") as table:
        raw = _raw(count)
        table.add("raw PUSH to PULL", count, raw, 1, None, None, 0)
        few = max(count // 20, 5_000)
        used = _cpu(edges)
        began = time.perf_counter()
        with edges.socket(zmq.PUSH, "pipeline") as push:
            for _ in range(few):
                push.send_multipart((b"plant/line1", _PAYLOAD))
            while edges.count("pipeline", "accepted") + edges.count("pipeline", "refused") < few:
                time.sleep(0.05)
        took = time.perf_counter() - began
        edge, gateway = ((after - before) / few * 1e6 for after, before in zip(_cpu(edges), used, strict=True))
        lost = few - edges.count("pipeline", "accepted")
        table.add("the edge", few, few / took, few / took / raw, edge, gateway, lost)


def _asking(report: Report, edges: Edges, count: int) -> None:
    with report.table("REQ, each answered in turn", "clients", "requests", "a second", "p50 ms", "p99 ms") as table:
        for clients in (1, 5):
            opened = [edges.socket(zmq.REQ, "asked") for _ in range(clients)]
            waits = []
            began = time.perf_counter()
            for _ in range(count):
                sent = time.perf_counter()
                for each in opened:
                    each.send_multipart((b"publish", b"plant/line1", _PAYLOAD))
                for each in opened:
                    assert each.recv_multipart()[0] == b"ok"
                    waits.append(time.perf_counter() - sent)
            took = time.perf_counter() - began
            waits.sort()
            p50, p99 = waits[len(waits) // 2], waits[int(len(waits) * 0.99)]
            table.add(clients, count * clients, count * clients / took, p50 * 1e3, p99 * 1e3)
            for each in opened:
                each.close()


def _raw(count: int) -> float:
    reader = subprocess.Popen([sys.executable, "-c", _RAW, str(count)], stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context.socket(zmq.PUSH) as push:
        push.connect(f"tcp://127.0.0.1:{reader.stdout.readline().strip()}")
        for _ in range(count):
            push.send_multipart((b"plant/line1", _PAYLOAD))
        took = float(reader.stdout.readline())
    context.term()
    reader.wait(60)
    reader.stdout.close()
    return (count - 1) / took


def _cpu(edges: Edges) -> tuple[float, float]:
    """Of the edge and of the gateway, in seconds."""
    edge, gateway = (sum(psutil.Process(pid).cpu_times()[:2]) for pid in (edges.pid, edges.gateway.pid))
    return edge, gateway


if __name__ == "__main__":
    run(measure)
