"""A soak: steady load on a whole engine with its default settings, and what grows.

    python -m benchmarks.storms.soak --minutes 60 [--rate 50] [--home DIR] [--json FILE]

Twenty subscriptions: eighteen to receivers that are well, one to an address where nobody listens, one to a receiver
that takes three seconds for each answer. Each minute memory (PSS, MiB), threads and open files of every part are noted,
and what is on disk. In the end the last sample of the load is compared with the one after five minutes; what the two
sick receivers have not had grows of necessity, everything else should not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from arborcast.client import Client
from arborcast.dispatch.operations.audit import audit
from benchmarks.storms.load import Publisher
from benchmarks.storms.receivers import Receivers
from benchmarks.storms.victim import Usage, Victim

WELL = tuple(f"well-{number}" for number in range(1, 19))
SLOW, DEAD = "slow", "dead"
TOPICS = ("soak/a", "soak/b", "soak/c", "soak/d")

# Samples before are those of a JVM that is still warming up.
_WARM_MINUTES = 5.0


@dataclass(frozen=True)
class Disk:
    """What is in the data directory. Sizes in MiB."""

    kafka_mib: float
    table_files: int
    checkpoint_files: int
    parked_mib: float
    log_mib: float

    @classmethod
    def of(cls, home: Path) -> Disk:
        """As it is now."""
        return cls(
            _mib(home / "kafka"),
            _count(home / "tables"),
            _count(home / "checkpoints"),
            _mib(home / "parked"),
            _mib(home / "log"),
        )


@dataclass(frozen=True)
class Sample:
    """The engine at a moment."""

    minutes: float
    accepted: int
    usage: dict[str, Usage]
    disk: Disk

    @property
    def memory_mib(self) -> float:
        """All parts together."""
        return sum(each.memory_mib for each in self.usage.values())

    @property
    def threads(self) -> int:
        return sum(each.threads for each in self.usage.values())

    @property
    def descriptors(self) -> int:
        return sum(each.descriptors for each in self.usage.values())


class Soak:
    """One soak."""

    def __init__(self, folder: Path, rate: float) -> None:
        self._victim = Victim(folder / "home", {})
        self._receivers = Receivers(folder / "arrivals.jsonl", [*WELL, SLOW, DEAD], forget=True)
        self._publishers = [
            Publisher(f"{self._victim.gateway}/wsn/NotificationBroker", topic, rate / len(TOPICS)) for topic in TOPICS
        ]
        self._rate = rate

    def run(self, minutes: float, every_s: float) -> tuple[list[Sample], dict[str, Any]]:
        """The samples, and what the audit says in the end."""
        since_ms = int(time.time() * 1000)
        samples: list[Sample] = []
        try:
            with self._receivers:
                self._victim.up()
                self._receivers.behave(SLOW, "slow/3")
                self._receivers.behave(DEAD, "refuse")
                with Client(self._victim.gateway) as client:
                    for number, name in enumerate((*WELL, SLOW, DEAD)):
                        # Each topic has subscribers of its own, and one in five takes everything.
                        topic = "soak//." if number % 5 == 0 else TOPICS[number % len(TOPICS)]
                        client.subscribe(topic, to=self._receivers.url(name))
                for publisher in self._publishers:
                    publisher.start()
                began = time.monotonic()
                _print_head()
                while (elapsed := time.monotonic() - began) < minutes * 60:
                    time.sleep(min(every_s, max(0.0, minutes * 60 - elapsed)))
                    samples.append(self._sample((time.monotonic() - began) / 60))
                    _print(samples[-1])
                for publisher in self._publishers:
                    publisher.stop()
                report = audit(self._victim.kafka, since_ms, patience_s=30)
        finally:
            self._victim.end()
        return samples, {
            "balanced": report.balanced,
            "unbalanced": report.unbalanced,
            "notifications": report.notifications,
            **report.totals.as_json(),
        }

    def _sample(self, minutes: float) -> Sample:
        accepted = sum(len(publisher.accepted) for publisher in self._publishers)
        return Sample(round(minutes, 2), accepted, self._victim.usage(), Disk.of(self._victim.home.path))


def compare(samples: list[Sample]) -> list[tuple[str, float, float]]:
    """What there was once all was warm, and at the end."""
    first = next((each for each in samples if each.minutes >= _WARM_MINUTES), samples[0])
    end = samples[-1]
    rows = [
        (f"memory of {part}, MiB", each.memory_mib, end.usage[part].memory_mib) for part, each in first.usage.items()
    ]
    rows += [
        ("memory, MiB", first.memory_mib, end.memory_mib),
        ("threads", first.threads, end.threads),
        ("open files", first.descriptors, end.descriptors),
    ]
    now = asdict(end.disk)
    return rows + [(name.replace("_", " "), value, now[name]) for name, value in asdict(first.disk).items()]


def _print_head() -> None:
    print(
        f"{'minute':>7} {'accepted':>9} {'MiB':>6} {'threads':>8} {'files':>6} "
        f"{'kafka MiB':>10} {'tables':>7} {'checkpoints':>12} {'parked MiB':>11} {'log MiB':>8}",
        flush=True,
    )


def _print(sample: Sample) -> None:
    disk = sample.disk
    print(
        f"{sample.minutes:7.1f} {sample.accepted:9,} "
        f"{sample.memory_mib:6.0f} {sample.threads:8} {sample.descriptors:6} "
        f"{disk.kafka_mib:10.1f} {disk.table_files:7} {disk.checkpoint_files:12} {disk.parked_mib:11.2f} "
        f"{disk.log_mib:8.2f}",
        flush=True,
    )


def _files(folder: Path) -> list[os.stat_result]:
    found = []
    for path in folder.rglob("*"):
        # Compaction and retention take files away while we look.
        with contextlib.suppress(OSError):
            if path.is_file():
                found.append(path.stat())
    return found


def _count(folder: Path) -> int:
    return len(_files(folder))


def _mib(folder: Path) -> float:
    # Blocks, because Kafka makes its index files as large as they may get, without filling them.
    return round(sum(each.st_blocks * 512 for each in _files(folder)) / 2**20, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=float, default=50.0, help="notifications per second")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two samples")
    parser.add_argument("--home", type=Path, help="keep everything in this new folder, to look at it afterwards")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        folder = options.home or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        samples, report = Soak(folder.absolute(), options.rate).run(options.minutes, options.every)
    rows = compare(samples)
    print(f"\n{'':<28} {'warm':>9} {'end':>9} {'change':>8}")
    for name, before, after in rows:
        change = f"{(after - before) / before * 100:+7.1f}%" if before else ""
        print(f"{name:<28} {before:9.1f} {after:9.1f} {change:>8}")
    print(f"audit: {report}")
    if options.json:
        document = {"samples": [asdict(each) for each in samples], "compared": rows, "audit": report}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    sys.exit(0 if report["balanced"] else 1)


if __name__ == "__main__":
    main()
