"""A soak: steady load on an engine with its default settings, and the growth of its resources.

    python -m benchmarks.storms.soak --minutes 60 [--rate 50] [--home DIR] [--json FILE]

Twenty subscriptions: eighteen to working receivers, one to an address without a listener, one to a receiver that takes
three seconds for each answer. Each minute memory (PSS, MiB), threads and open files of every part and the use of the
disk are sampled. At the end the last sample is compared with that after five minutes: only the parked messages of the
two failing receivers should have grown.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from arborcast.client import Client
from arborcast.dispatch.operations.audit import Report as Audit
from arborcast.dispatch.operations.audit import audit
from benchmarks.report import Report, on_disk, run
from benchmarks.storms.load import Publisher
from benchmarks.storms.receivers import Receivers
from benchmarks.storms.victim import Usage, Victim, kept

HEALTHY = tuple(f"well-{number}" for number in range(1, 19))
SLOW, DEAD = "slow", "dead"
TOPICS = ("soak/a", "soak/b", "soak/c", "soak/d")

# Before this time the JVM is warming up.
_WARM_MINUTES = 5.0


FIGURES = (
    *("minute", "accepted", "MiB", "threads", "open files"),
    *("kafka MiB", "table files", "checkpoint files", "parked MiB", "log MiB"),
)


@dataclass(frozen=True)
class Sample:
    """A sample; `figures` are those of FIGURES."""

    figures: tuple[float, ...]
    usage: dict[str, Usage]

    @classmethod
    def of(cls, victim: Victim, minutes: float, accepted: int) -> Sample:
        usage, home = victim.usage(), victim.home.path
        parts = usage.values()
        return cls(
            (
                round(minutes, 1),
                accepted,
                sum(each.memory_mib for each in parts),
                sum(each.threads for each in parts),
                sum(each.descriptors for each in parts),
                round(on_disk(home / "kafka")[0], 2),
                on_disk(home / "tables")[1],
                on_disk(home / "checkpoints")[1],
                round(on_disk(home / "parked")[0], 2),
                round(on_disk(home / "log")[0], 2),
            ),
            usage,
        )


class Soak:
    """A soak of one engine."""

    def __init__(self, folder: Path, rate: float) -> None:
        self._victim = Victim(folder / "home", {})
        self._receivers = Receivers(folder / "arrivals.jsonl", [*HEALTHY, SLOW, DEAD], forget=True)
        self._publishers = [Publisher(self._victim.gateway, topic, rate / len(TOPICS)) for topic in TOPICS]

    def run(self, minutes: float, every_s: float, add: Callable[[Sample], None]) -> tuple[list[Sample], Audit]:
        """The samples, for each of which `add` was called, and the audit at the end."""
        since_ms = int(time.time() * 1000)
        samples: list[Sample] = []
        try:
            with self._receivers:
                self._victim.up()
                self._receivers.behave(SLOW, "slow/3")
                self._receivers.behave(DEAD, "refuse")
                with Client(self._victim.gateway) as client:
                    for number, name in enumerate((*HEALTHY, SLOW, DEAD)):
                        # One in five subscribes to all topics.
                        topic = "soak//." if number % 5 == 0 else TOPICS[number % len(TOPICS)]
                        client.subscribe(topic, to=self._receivers.url(name))
                for publisher in self._publishers:
                    publisher.start()
                began = time.monotonic()
                while (elapsed := time.monotonic() - began) < minutes * 60:
                    time.sleep(min(every_s, max(0.0, minutes * 60 - elapsed)))
                    accepted = sum(len(publisher.accepted) for publisher in self._publishers)
                    samples.append(Sample.of(self._victim, (time.monotonic() - began) / 60, accepted))
                    add(samples[-1])
                for publisher in self._publishers:
                    publisher.stop()
                report = audit(self._victim.kafka, since_ms, patience_s=30)
        finally:
            self._victim.end()
        return samples, report


def compare(samples: list[Sample]) -> list[tuple[str, float, float]]:
    """The figures after the warm-up, and at the end."""
    first, end = next((each for each in samples if each.figures[0] >= _WARM_MINUTES), samples[0]), samples[-1]
    rows = [
        (f"memory of {part}, MiB", each.memory_mib, end.usage[part].memory_mib) for part, each in first.usage.items()
    ]
    return rows + list(zip(FIGURES[2:], first.figures[2:], end.figures[2:], strict=True))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=float, default=50.0, help="notifications per second")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two samples")
    parser.add_argument("--home", type=Path, help="keep everything in this new folder, to look at it afterwards")


def measure(report: Report) -> bool:
    chosen = report.options
    with kept(chosen.home, "soak-") as folder, report.table("samples", *FIGURES) as table:

        def add(sample: Sample) -> None:
            table.add(*sample.figures)
            print(" ".join(f"{figure:12,.1f}" for figure in sample.figures), flush=True)

        samples, audit = Soak(folder, chosen.rate).run(chosen.minutes, chosen.every, add)
    with report.table("growth", "figure", "warm", "end", "change %") as table:
        for name, before, after in compare(samples):
            table.add(name, before, after, (after - before) / before * 100 if before else None)
    balance = "balanced" if audit.balanced else f"{audit.unbalanced} DO NOT BALANCE"
    print(f"audit: {audit.notifications:,} notifications, {balance}")
    return audit.balanced


if __name__ == "__main__":
    run(measure, options)
