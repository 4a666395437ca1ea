"""Rounds of subscribe, failed push and unsubscribe with new addresses each time, and their traces in an engine.

    python -m benchmarks.storms.unsubscribe_rounds --minutes 3 [--wave 200] [--home DIR] [--json FILE]

In waves of `--wave` subscriptions, each with its own address without a listener: one notification is published, every
push fails and waits, they unsubscribe, and the wave ends when no delivery waits. Sampled after the first waves, after
half of `--minutes` and at the end: memory of each part (PSS, MiB), rows of the tables, live keys of the compacted logs,
and the number of endpoints that the driver keeps for its next start. Histories (the tables of events, and ended
subscriptions) grow by design until their age limit. Memory grows until bounded caches are full, and with the commits of
the tables until their files are joined (every ten minutes): a leak would show in both halves alike.
"""

from __future__ import annotations

import argparse
import itertools
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

import msgspec
import pyarrow.dataset as ds

from arborcast.client import Client, FuturesClient
from arborcast.core.eventlog.scan import LogScan
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs.parked import roomy
from arborcast.dispatch.settings import TableSettings
from arborcast.dispatch.tables import (
    ATTEMPTS,
    DEAD_LETTERS,
    DELIVERIES,
    ENDPOINT_HEALTH,
    NOTIFICATIONS,
    RETRIES,
    ROUTES,
    SUBSCRIPTIONS,
    TOPICS,
)
from arborcast.dispatch.tables.spec import TableSpec, open_table, table_exists
from benchmarks.report import Report, run, wait_for
from benchmarks.storms.victim import Victim, kept

TOPIC = "rounds/all"

# For bounded caches and the JVM to warm up.
_WARM_WAVES = 10

# The tables are written every five seconds, less often when busy.
_SETTLE_S = 20.0
_PATIENCE_S = 180.0


@dataclass(frozen=True)
class Sample:
    """A sample after a number of rounds."""

    rounds: int
    figures: dict[str, float]


class Rounds:
    """An engine and its waves of subscriptions."""

    def __init__(self, home: Path, wave: int) -> None:
        # Quick retries, so that rounds are short and the breaker opens.
        self._victim = Victim(home, {"retry.first_wait_s": "1", "retry.first_probe_s": "1"})
        self._wave = wave
        self._hosts = itertools.count(1)
        self.rounds = 0

    def run(self, minutes: float) -> list[Sample]:
        """The samples after the first waves, after half of the rest, and at the end."""
        try:
            self._victim.up()
            with FuturesClient(self._victim.gateway, workers=16) as many, Client(self._victim.gateway) as one:
                for _ in range(_WARM_WAVES):
                    self._one_wave(many, one)
                samples = [self._sample()]
                for _ in range(2):
                    until = time.monotonic() + minutes * 30
                    while time.monotonic() < until:
                        self._one_wave(many, one)
                        print(f"{self.rounds:>8} rounds", flush=True)
                    samples.append(self._sample())
                return samples
        finally:
            self._victim.end()

    def _one_wave(self, many: FuturesClient, one: Client) -> None:
        made = [many.subscribe(TOPIC, to=self._address()) for _ in range(self._wave)]
        subscriptions = [each.result(120) for each in made]
        one.notify(TOPIC, f"<n round={quoteattr(str(self.rounds))}/>")
        wait_for(lambda: self._waiting() >= self._wave, "all pushes have failed", _PATIENCE_S)
        for each in [many.unsubscribe(subscription) for subscription in subscriptions]:
            each.result(120)
        wait_for(lambda: self._waiting() == 0, "no delivery waits", _PATIENCE_S)
        self.rounds += self._wave

    def _address(self) -> str:
        """An address without a listener; each is another host of loopback."""
        number = next(self._hosts)
        return f"http://127.{1 + (number >> 16) % 250}.{(number >> 8) % 256}.{number % 256}:9/r{number}"

    def _waiting(self) -> int:
        """The number of waiting deliveries in the driver's file."""
        with closing(sqlite3.connect(f"{self._file.as_uri()}?mode=ro", uri=True)) as opened:
            (count,) = opened.execute("SELECT COUNT(*) FROM waiting").fetchone()
        return int(count)

    @property
    def _file(self) -> Path:
        return self._victim.home.path.absolute() / "parked" / "parked.sqlite"

    def _sample(self) -> Sample:
        time.sleep(_SETTLE_S)
        used = self._victim.usage().items()
        figures: dict[str, float] = {}
        for part, usage in used:
            if usage.processes:
                figures[f"memory of {part} (MiB)"] = usage.memory_mib
                figures[f"memory of {part}, processes"] = usage.processes
        figures |= {f"live keys of {log}": count for log, count in live_keys(self._victim.kafka).items()}
        figures |= rows(self._victim.home.path)
        with closing(sqlite3.connect(f"{self._file.as_uri()}?mode=ro", uri=True)) as opened:
            kept = opened.execute("SELECT value FROM fact WHERE name = 'health'").fetchone()
        figures["endpoints kept for the next start"] = len(msgspec.msgpack.decode(kept[0])) if kept else 0
        return Sample(self.rounds, figures)


def live_keys(kafka: KafkaSettings) -> dict[str, int]:
    """The number of keys of each compacted log whose last record is not a tombstone."""
    found = {}
    for log in ("control", "parked", "dead", "retained"):
        live: set[bytes] = set()
        with LogScan(roomy(kafka), log) as reading:
            for record in reading.read_all():
                (live.discard if record.value is None else live.add)(record.key)
        found[log] = len(live)
    return found


def rows(home: Path) -> dict[str, float]:
    """Rows of the tables: the current state, and histories."""
    ended = ds.field("state") == "ended"
    found = {f"rows of {spec.name}": _rows(home, spec) for spec in (TOPICS, ROUTES, RETRIES, DEAD_LETTERS)}
    found[f"rows of {SUBSCRIPTIONS.name}, in force"] = _rows(home, SUBSCRIPTIONS, ~ended)
    found[f"degraded endpoints of {ENDPOINT_HEALTH.name}"] = _degraded(home)
    found[f"history: rows of {SUBSCRIPTIONS.name}, ended"] = _rows(home, SUBSCRIPTIONS, ended)
    for spec in (ENDPOINT_HEALTH, ATTEMPTS, DELIVERIES, NOTIFICATIONS):
        found[f"history: rows of {spec.name}"] = _rows(home, spec)
    return found


def _rows(home: Path, spec: TableSpec, wanted: ds.Expression | None = None) -> float:
    location = spec.location(TableSettings(), home)
    return float(spec.dataset(open_table(location)).count_rows(filter=wanted)) if table_exists(location) else 0.0


def _degraded(home: Path) -> float:
    location = ENDPOINT_HEALTH.location(TableSettings(), home)
    if not table_exists(location):
        return 0
    columns = ["at", "endpoint", "breaker", "sick"]
    table = open_table(location).to_pyarrow_dataset().to_table(columns=columns).sort_by("at")
    latest = {row["endpoint"]: row for row in table.to_pylist()}
    return float(sum(bool(row["breaker"] != "closed" or row["sick"]) for row in latest.values()))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--wave", type=int, default=200, help="subscriptions at a time")
    parser.add_argument("--home", type=Path, help="keep everything in this new folder, to look at it afterwards")


def measure(report: Report) -> bool:
    chosen = report.options
    with kept(chosen.home, "rounds-") as folder:
        samples = Rounds(folder, chosen.wave).run(chosen.minutes)
    first, _, last = samples
    with report.table("after rounds", "figure", *(f"{sample.rounds:,}" for sample in samples)) as table:
        for name in last.figures:
            table.add(name, *(sample.figures.get(name, 0) for sample in samples))
    left = [
        name
        for name in last.figures
        if not name.startswith(("history", "memory")) and last.figures[name] > first.figures.get(name, 0)
    ]
    print("grown: " + (", ".join(left) or "nothing"))
    return not left


if __name__ == "__main__":
    run(measure, options)
