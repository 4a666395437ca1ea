"""The embedded engine as a whole: how long it takes to come up, to deliver, to stop, and what it uses when idle.

    python -m benchmarks.operation.engine [--starts 3] [--idle-seconds 60] [--small] [--json FILE]

Every start but the first is warm: storage formatted, tables and checkpoints there. Latencies are from the moment a
notification was due at the publisher, through the gateway, to the subscriber. Memory is PSS where there is such a thing
(see `arborcast status`); CPU is per cent of one core. `--small` measures the small profile of docs/operations.md.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from arborcast.client import Client
from tests.support.command import Engine, wait_until
from tests.support.receiver import Receiver

SMALL_PROFILE = {
    "ARBORCAST_DISPATCH_TASK_SLOTS": "2",
    "ARBORCAST_KAFKA_PARTITIONS": "2",
    "ARBORCAST_DISPATCH_DRIVER_MEMORY_MB": "480",
    "ARBORCAST_STACK_KAFKA_HEAP_MB": "128",
}

RATE = 5  # notifications per second: alone, each finds an idle engine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--idle-seconds", type=float, default=60)
    parser.add_argument("--lone-seconds", type=float, default=20)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.small:
        os.environ.update(SMALL_PROFILE)

    with tempfile.TemporaryDirectory() as folder, Receiver() as receiver:
        engine = Engine(Path(folder) / "home")
        starts = []
        print(f"{'start':<8} {'ready s':>8} {'delivered s':>12} {'stop s':>7}")
        try:
            for number in range(options.starts):
                starts.append(_one_start(engine, receiver, "cold" if number == 0 else "warm"))
            engine.up()
            idle = _idle(engine, options.idle_seconds)
            lone = _lone(engine, receiver, options.lone_seconds)
        finally:
            engine.down()
    if options.json:
        options.json.write_text(json.dumps({"starts": starts, "idle": idle, "lone": lone}, indent=1))


def _one_start(engine: Engine, receiver: Receiver, kind: str) -> dict[str, float | str]:
    began = time.monotonic()
    engine.up()
    ready = time.monotonic() - began
    if kind == "cold":
        engine.run("subscribe", "bench//.", "--to", receiver.url("/bench"))
    before = len(receiver.requests)
    engine.run("publish", "bench/a", "-", input="<x/>")
    wait_until(lambda: len(receiver.requests) > before, 60, "the first notification")
    delivered = time.monotonic() - began
    began = time.monotonic()
    engine.down()
    stop = time.monotonic() - began
    print(f"{kind:<8} {ready:8.1f} {delivered:12.1f} {stop:7.1f}", flush=True)
    return {"kind": kind, "ready_s": ready, "delivered_s": delivered, "stop_s": stop}


def _idle(engine: Engine, seconds: float) -> dict[str, dict[str, float]]:
    time.sleep(30)  # while the JIT finishes with what the start has made hot
    before = _usage(engine)
    time.sleep(seconds)
    after = _usage(engine)
    print(f"\n{'part':<12} {'MiB':>6} {'idle CPU %':>11}")
    rows = {
        name: {"mib": memory / 2**20, "cpu_percent": (cpu - before[name][1]) / seconds * 100}
        for name, (memory, cpu) in after.items()
    }
    rows["all"] = {key: sum(row[key] for row in rows.values()) for key in ("mib", "cpu_percent")}
    for name, row in rows.items():
        print(f"{name:<12} {row['mib']:6.0f} {row['cpu_percent']:11.1f}")
    return rows


def _lone(engine: Engine, receiver: Receiver, seconds: float) -> dict[str, float]:
    """Latency of notifications that come one by one, open loop: a late one does not delay the next."""
    count = int(seconds * RATE)
    before = len(_arrivals(receiver))
    due: list[float] = []
    with Client(engine.gateway) as client:
        client.notify("bench/a", "<warm/>")
        wait_until(lambda: len(_arrivals(receiver)) > before, 30, "the first notification")
        start = time.time() + 0.5
        for number in range(count):
            due.append(start + number / RATE)
            time.sleep(max(0.0, due[-1] - time.time()))
            client.notify("bench/a", f"<n>{number}</n>")
    wait_until(lambda: len(_arrivals(receiver)) > before + count, 30, "all notifications")
    arrived = _arrivals(receiver)[before + 1 :]
    latencies = sorted((at - was_due) * 1e3 for at, was_due in zip(arrived, due, strict=True))
    figures = {"p50_ms": latencies[count // 2], "p99_ms": latencies[int(count * 0.99)], "max_ms": latencies[-1]}
    print(f"\n{RATE}/s through the gateway: " + ", ".join(f"{name} {value:.0f}" for name, value in figures.items()))
    return figures


def _arrivals(receiver: Receiver) -> list[float]:
    """A time for each notification: on a busy machine some wait together, and then share a request."""
    return [
        request.at
        for request in receiver.requests
        for _ in request.headers.get("arborcast-notification-id", "").split(",")
    ]


def _usage(engine: Engine) -> dict[str, tuple[float, float]]:
    document = engine.status()
    parts = {**document["parts"], "supervisor": document["supervisor"]}
    return {name: (part["memory_bytes"], part["cpu_seconds"]) for name, part in parts.items()}


if __name__ == "__main__":
    main()
