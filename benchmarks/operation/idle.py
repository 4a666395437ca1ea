"""What the dispatch job and the broker cost while nothing happens: CPU over a while, memory by process.

    python -m benchmarks.operation.idle [--seconds 60] [--settle 45] [--json FILE] [SETTING=VALUE ...]

Memory is PSS: pages that several processes share are divided among them, so the sum is what the machine has less. The
last row is the same broker after the job has been killed, when nobody asks it anything: no engine on it costs less.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from benchmarks.dispatching import Dispatching, dispatching, settings_arguments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--settle", type=float, default=45, help="seconds to wait first, while the JIT finishes")
    parser.add_argument("--json", type=Path)
    parser.add_argument("settings", nargs="*")
    options = parser.parse_args()
    with dispatching(settings_arguments(options.settings)) as bench:
        bench.subscribe(["one"])
        sent = bench.append_at(5, 5, "before")
        bench.arrivals(len(sent))
        time.sleep(options.settle)
        before = _cpu(bench.processes())
        started = time.monotonic()
        time.sleep(options.seconds)
        after, elapsed = _cpu(bench.processes()), time.monotonic() - started
        memory = {
            role: sum(process.memory_full_info().pss for process in processes) / 2**20
            for role, processes in bench.processes().items()
        }
        counts = {role: len(processes) for role, processes in bench.processes().items()}
        alone = _broker_alone(bench, options.seconds)
    cpu = {role: max(after[role] - before.get(role, 0.0), 0.0) / elapsed * 100 for role in after}
    print(f"{'part':<8} {'processes':>9} {'CPU % of a core':>16} {'PSS MiB':>8}")
    for role in memory:
        print(f"{role:<8} {counts[role]:9} {cpu[role]:16.2f} {memory[role]:8.0f}")
    print(f"{'sum':<8} {sum(counts.values()):9} {sum(cpu.values()):16.2f} {sum(memory.values()):8.0f}")
    print(f"{'kafka, asked nothing':<26} {alone:16.2f}")
    if options.json:
        found = {"seconds": elapsed, "cpu_percent": cpu, "pss_mib": memory, "kafka_alone_percent": alone}
        options.json.write_text(json.dumps(found, indent=1))


def _broker_alone(bench: Dispatching, seconds: float) -> float:
    broker = {"kafka": bench.processes()["kafka"]}
    bench.job.kill()
    time.sleep(15)  # until it has given up the sessions of those who are gone
    before, started = _cpu(broker), time.monotonic()
    time.sleep(seconds)
    return (_cpu(broker)["kafka"] - before["kafka"]) / (time.monotonic() - started) * 100


def _cpu(processes: dict[str, list]) -> dict[str, float]:  # type: ignore[type-arg]
    return {role: sum(sum(p.cpu_times()[:2]) for p in each) for role, each in processes.items()}


if __name__ == "__main__":
    main()
