"""The embedded engine as a whole: how long it takes to come up, to deliver, to stop, and what it uses when idle.

    python -m tests.benchmarks.engine [--starts 3] [--idle-seconds 60] [--json FILE]

Every start but the first is warm: storage formatted, tables and checkpoints there. Memory is PSS where there is such a
thing (see `arborcast status`); CPU is per cent of one core.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from tests.support.command import Engine, wait_until
from tests.support.receiver import Receiver


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--idle-seconds", type=float, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder, Receiver() as receiver:
        engine = Engine(Path(folder) / "home")
        starts = []
        print(f"{'start':<8} {'ready s':>8} {'delivered s':>12} {'stop s':>7}")
        try:
            for number in range(options.starts):
                starts.append(_one_start(engine, receiver, "cold" if number == 0 else "warm"))
            engine.up()
            idle = _idle(engine, options.idle_seconds)
        finally:
            engine.down()
    if options.json:
        options.json.write_text(json.dumps({"starts": starts, "idle": idle}, indent=1))


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


def _usage(engine: Engine) -> dict[str, tuple[float, float]]:
    document = engine.status()
    parts = {**document["parts"], "supervisor": document["supervisor"]}
    return {name: (part["memory_bytes"], part["cpu_seconds"]) for name, part in parts.items()}


if __name__ == "__main__":
    main()
