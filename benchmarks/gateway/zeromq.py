"""The ZeroMQ edges beside raw sockets of the same kind, in one run.

    python -m benchmarks.gateway.zeromq [--quick] [--json FILE]

Raw is PUSH to PULL between two processes with nothing in between: what no broker that keeps messages comes near. The
edge's messages are in Kafka, with acks=all, when they count. A slow joiner is a SUB that does not ask `ready`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import psutil
import zmq

from benchmarks.dispatching import dispatching
from benchmarks.harness import Report, run
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
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        bench = opened.enter_context(dispatching())
        edges = opened.enter_context(edges_of(folder / "edges", bench.kafka))
        _publishing(report, edges, count)
        _asking(report, edges, 100 if report.quick else 2_000)
        _fan_out(report, edges, 100, 20 if report.quick else 100)
        _tasks(report, edges, 2_000 if report.quick else 8_000)  # a pull point keeps 10,000


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


def _fan_out(report: Report, edges: Edges, receivers: int, count: int) -> None:
    columns = ("receivers", "messages", "received", "lost", "a second, all together")
    note = "published with REQ, so that none waits for room; each receiver asks ready first"
    with report.table("One publisher, many SUB", *columns, note=note) as table, ExitStack() as opened:
        subs = [opened.enter_context(edges.subscriber(b"fan/out")) for _ in range(receivers)]
        began = time.perf_counter()
        for _ in range(count):
            assert edges.ask(b"publish", b"fan/out", _PAYLOAD)[0] == b"ok"
        received = 0
        for each in subs:
            while received < receivers * count and each.poll(20_000 if received < count else 2_000):
                each.recv_multipart()
                received += 1
                if received % count == 0:
                    break
        took = time.perf_counter() - began
        table.add(receivers, count, received, receivers * count - received, received / took)


def _tasks(report: Report, edges: Edges, count: int) -> None:
    columns = ("workers", "tasks", "done", "max / min behind the first 1,000", "a second")
    note = "the second row: one worker closes its socket after a third; what it had not read is lost"
    with report.table("Tasks", *columns, note=note) as table:
        for leaves in (False, True):
            with ExitStack() as opened:
                workers = [opened.enter_context(edges.socket(zmq.PULL, "tasks")) for _ in range(5)]
                poller = zmq.Poller()
                for each in workers:
                    poller.register(each, zmq.POLLIN)
                push = opened.enter_context(edges.socket(zmq.PUSH, "pipeline"))
                sender = threading.Thread(target=_push_tasks, args=(push, count))
                began = time.perf_counter()
                sender.start()
                done: Counter[int] = Counter()
                early: Counter[int] = Counter()
                while ready := poller.poll(20_000):
                    for each, _ in ready:
                        each.recv_multipart()
                        done[workers.index(each)] += 1
                    if done.total() <= 1_000:
                        early = done.copy()
                    if leaves and done.total() > count // 3 and workers[0] in dict(poller.sockets):
                        poller.unregister(workers[0])
                        workers[0].close(0)
                    if done.total() >= count:
                        break
                took = time.perf_counter() - began
                sender.join()
                late = [done[number] - early[number] for number in range(int(leaves), 5)]
                table.add(5, count, done.total(), max(late) / max(min(late), 1), done.total() / took)


def _push_tasks(push: zmq.Socket[bytes], count: int) -> None:
    for _ in range(count):
        push.send_multipart((b"jobs/resize", _PAYLOAD))


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
