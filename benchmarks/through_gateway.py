"""The whole path for measurements: publishers, gateway, Kafka, dispatch job, receiver, each in a process of its own.

Every run is checked: each acknowledged message has to arrive at each subscriber, in its publisher's order.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks.dispatching import Dispatching, dispatching, percentile
from tests.support.dispatch_process import ROOT
from tests.support.gateway_process import GatewayRun, gateway_run


@dataclass
class Outcome:
    """What came of one run. Delays are in ms, from the moment at which a message was meant to be sent; arrivals in
    seconds since the first was."""

    sent: int = 0
    refused: int = 0
    delivered: int = 0
    lost: int = 0
    twice: int = 0
    disorder: int = 0
    seconds: float = 0.0
    delays: list[float] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    cpu: dict[str, float] = field(default_factory=dict)

    @property
    def per_second(self) -> float:
        return self.delivered / self.seconds if self.seconds else 0.0

    @property
    def p50_ms(self) -> float | None:
        return percentile(self.delays, 0.5) if self.delays else None

    @property
    def p99_ms(self) -> float | None:
        return percentile(self.delays, 0.99) if self.delays else None

    def cells(self) -> tuple[int | float | None, ...]:
        """A row of a table with the columns OUTCOME."""
        return (
            self.sent,
            self.per_second,
            self.p50_ms,
            self.p99_ms,
            self.lost,
            self.twice,
            self.disorder,
            self.refused,
        )


OUTCOME = ("sent", "delivered/s", "p50 ms", "p99 ms", "lost", "twice", "disorder", "refused")


class Rig:
    """The running parts."""

    def __init__(self, bench: Dispatching, gateway: GatewayRun, folder: Path) -> None:
        self.bench = bench
        self.gateway = gateway
        self._folder = folder

    def run(
        self,
        paths: Sequence[str],
        publishers: int,
        seconds: float,
        rate: float | None = None,
        size: int = 800,
        topic: str = "bench/p",
        topics: int = 1,
        one_topic: bool = False,
    ) -> Outcome:
        """Publish for so long, wait until all has arrived at these paths (or nothing more comes), and check.

        Each publisher has a topic of its own, or takes `topics` of them in turn, or all have one.
        """
        self.clear()
        before = self._cpu()
        out = self._folder / "sent.json"
        command = [sys.executable, "-m", "benchmarks.gateway.publishers", str(self.gateway.port), str(publishers)]
        command += [str(seconds), str(out), "--bytes", str(size), "--topic", topic]
        command += ["--topics", str(topics), *(["--one-topic"] if one_topic else [])]
        subprocess.run([*command, *(["--rate", str(rate)] if rate else [])], check=True, cwd=ROOT)
        told = json.loads(out.read_text())
        acknowledged: dict[str, float] = told["acknowledged"]
        arrived = self._arrivals(set(paths), len(acknowledged) * len(paths))
        after = self._cpu()
        outcome = check(acknowledged, arrived, paths, topics)
        outcome.refused = told["refused"]
        outcome.cpu = {name: after[name] - before.get(name, 0.0) for name in after}
        return outcome

    def clear(self) -> None:
        """Forget what has arrived."""
        _get(f"{self.bench.receiver_url}/_clear")

    def _arrivals(self, paths: set[str], expected: int, quiet: float = 20.0) -> list[tuple[float, str, str]]:
        known, since = -1, time.monotonic()
        while True:
            received = [each for each in _get(f"{self.bench.receiver_url}/_marks") if each[1] in paths]
            count = sum(each[2].count(",") + 1 for each in received)
            if count != known:
                known, since = count, time.monotonic()
            if count >= expected or time.monotonic() - since > quiet:
                return received
            time.sleep(0.3)

    def _cpu(self) -> dict[str, float]:
        """Seconds of CPU so far, by part."""
        parts = {**self.bench.processes(), "gateway": [psutil.Process(self.gateway.pid)]}
        used: dict[str, float] = {}
        for name, processes in parts.items():
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    # With what those have used that have ended: a shift of gear ends workers.
                    used[name] = used.get(name, 0.0) + sum(process.cpu_times()[:4])
        return used


def check(
    acknowledged: Mapping[str, float], arrived: Sequence[tuple[float, str, str]], paths: Sequence[str], topics: int = 1
) -> Outcome:
    """Loss, repetition and order (within each topic) of what arrived, and how long it took."""
    outcome = Outcome(sent=len(acknowledged))
    seen: dict[str, set[str]] = {path: set() for path in paths}
    latest: defaultdict[tuple[str, str, int], str] = defaultdict(str)
    for at, path, marks in arrived:
        for mark in marks.split(","):
            if mark in seen[path]:
                outcome.twice += 1
                continue
            seen[path].add(mark)
            lane = (path, mark[:3], int(mark[4:]) % topics)
            outcome.disorder += mark < latest[lane]
            latest[lane] = max(mark, latest[lane])
            if mark in acknowledged:
                outcome.delays.append((at - acknowledged[mark]) * 1e3)
                outcome.arrivals.append(at)
    outcome.lost = sum(len(acknowledged.keys() - marks) for marks in seen.values())
    outcome.delivered = len(outcome.delays)
    if outcome.arrivals:
        began = min(acknowledged.values())
        outcome.arrivals = sorted(at - began for at in outcome.arrivals)
        outcome.seconds = outcome.arrivals[-1]
    return outcome


@contextmanager
def rig(settings: Mapping[str, str | int | float] | None = None, more_ports: int = 0) -> Iterator[Rig]:
    """Everything up and warm; everything gone afterwards."""
    options = ("--marks", "--more-ports", str(more_ports))
    with (
        TemporaryDirectory(prefix="arborcast-bench-") as name,
        dispatching(settings, receiver_options=options) as bench,
    ):
        folder = Path(name)
        with gateway_run(folder / "gateway", bench.kafka) as gateway:
            yield Rig(bench, gateway, folder)


def _get(url: str) -> list[tuple[float, str, str]]:
    with urllib.request.urlopen(url, timeout=60) as response:  # noqa: S310
        answer: list[tuple[float, str, str]] = json.loads(response.read())
        return answer
