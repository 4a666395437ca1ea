"""How long the job takes to start again after it was killed, and where the time goes.

    python -m benchmarks.operation.start_time [--rounds 3]

starts it with the archive of classes and without, in turn, and prints of each start the seconds until it is ready, by
stage, and the CPU seconds of its processes, which a machine with other work to do changes less.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from statistics import median

from tests.support.broker import new_broker, settings_for
from tests.support.dispatch_job import logs, subscription
from tests.support.dispatch_process import DispatchProcess

# The job prints these, with the time, when a stage is over.
_STAGES = {"Spark session": "pushes may go to", "warm-up": "warmed up in", "queries": "ready to deliver"}


def measured(job: DispatchProcess) -> dict[str, float]:
    """One start: seconds by stage, and CPU seconds by process."""
    began = time.time()
    job.start(600)
    ready = time.time()
    processes = job.processes()
    log = job.log(20_000)
    figures = {"ready": ready - began, "launcher and JVM": processes["driver"][0].create_time() - began}
    last = began + figures["launcher and JVM"]
    for stage, said in _STAGES.items():
        *_, line = (line for line in log.splitlines() if said in line)
        at = datetime.fromisoformat(re.split(r"\s", line)[0]).timestamp()
        figures[stage], last = at - last, at
    for role, members in processes.items():
        figures[f"CPU {role}"] = sum(sum(each.cpu_times()[:2]) for each in members)
    figures["CPU"] = sum(seconds for name, seconds in figures.items() if name.startswith("CPU "))
    job.kill()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds: int = parser.parse_args().rounds
    found: dict[bool, list[dict[str, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="start-") as folder:
        broker = new_broker(Path(folder) / "kafka")
        broker.start()
        try:
            kafka = settings_for(broker)
            with logs(kafka) as log:
                log.subscribe(subscription("s", "http://127.0.0.1:9/", "a"))
            jobs = {kind: DispatchProcess(Path(folder) / str(kind), kafka, archive=kind) for kind in (False, True)}
            for _ in range(rounds):
                for kind, job in jobs.items():
                    found[kind].append(measured(job))
        finally:
            broker.kill()
    without, with_archive = middle(found[False]), middle(found[True])
    print(f"{'median, seconds':20} {'without':>8} {'archive':>8} {'ratio':>6} {'share':>6}")
    for name, seconds in without.items():
        now = with_archive[name]
        share = f"{now / with_archive['ready']:6.0%}" if not name.startswith("CPU") else ""
        print(f"{name:20} {seconds:8.1f} {now:8.1f} {now / max(seconds, 0.01):6.2f} {share}")


def middle(starts: list[dict[str, float]]) -> Mapping[str, float]:
    """The medians of several starts."""
    return {name: median(each[name] for each in starts) for name in starts[0]}


if __name__ == "__main__":
    main()
