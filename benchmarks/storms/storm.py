"""A storm: kill -9 of every part of an engine under load at random times, while its receivers misbehave.

    python -m benchmarks.storms.storm --kills 100 [--seed N] [--minutes M] [--rate 60] [--home DIR] [--json FILE]

Publishers and receivers are separate processes and record each 202 and each arrival. At the end all receivers work;
when no delivery is pending, the record is compared with the engine's logs and its audit. Nothing may be lost, first
attempts must be in the order of acceptance per subscription and topic, strict order must hold, only timely messages
may be dropped for newer ones and only adaptive ones for want of resources, and each repeated message must have been in
flight at a kill or answered late. The exit status is 0 if all of it holds.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from arborcast.client import Client, Delivery
from arborcast.dispatch.operations.audit import Report as Audit
from benchmarks.report import Report, run
from benchmarks.storms.delivery_states import settle, states
from benchmarks.storms.judge import Findings, judge
from benchmarks.storms.load import POISON, Arrivals, Publisher, Puller
from benchmarks.storms.receivers import Receivers
from benchmarks.storms.record import Kill, Record, Wanted, arrivals
from benchmarks.storms.victim import PARTS, Usage, Victim, kept

TOPICS = ("storm/a", "storm/b", "storm/c", "storm/a/deep")

BATCH_WAIT_S = 1.0

# Short waits, so that a storm has many of them, and no backoff for repeated starts.
SETTINGS = {
    "retry.first_wait_s": "0.3",
    "retry.factor": "2",
    "retry.longest_wait_s": "3",
    "retry.longest_retry_after_s": "2",
    "retry.first_probe_s": "0.3",
    "retry.longest_probe_s": "2",
    "retry.batch_wait_s": str(BATCH_WAIT_S),
    # A low limit, so that it is reached.
    "retry.parked_messages": "40",
    "push.connect_timeout_s": "2",
    "push.total_timeout_s": "4",
    "dispatch.task_slots": "4",
    "stack.restart_max_s": "2",
    # For a busy machine.
    "stack.start_timeout_s": "400",
}

BEHAVIOURS = (
    *("well", "well", "well", "hang", "status/500", "retry-after/1", "refuse", "slow/0.6", "slow/3", "half"),
    *("drip/1", "drip-headers/1", "close", "drop", "reset", "garbage", f"picky/400/{POISON}"),
)

STEADY = "steady"
WANTED = (
    Wanted(STEADY, frozenset(TOPICS)),
    Wanted("notify", frozenset({"storm/a"})),
    Wanted("subtree", frozenset({"storm/a", "storm/a/deep"})),
    Wanted("raw", frozenset({"storm/b"})),
    Wanted("strict", frozenset({"storm/c", "storm/b"}), strict=True),
    Wanted("stubborn", frozenset({"storm/c", "storm/b"}), strict=True, reliability="strict"),
    Wanted("timely", frozenset({"storm/a", "storm/c"}), reliability="timely"),
    Wanted("pull", frozenset(TOPICS), pulled=True),
)

# Without a delivery for this time the recovery has failed.
_RECOVERY_S = 240.0
_DRAIN_S = 300.0

# Parts that end because of the kill of another one end within this time; until then a message may be delivered.
_ENDED_S = 2.0

# Within this time after a kill all parts have processes.
_START_S = 90.0


@dataclass
class Outcome:
    """The result of a storm."""

    record: Record
    findings: Findings
    audit: Audit
    before: dict[str, Usage]
    after: dict[str, Usage]
    refused: dict[str, int]
    seconds: float
    problems: list[str] = field(default_factory=list)

    @property
    def well(self) -> bool:
        """Whether every promise held."""
        return not self.findings.faults and self.audit.balanced and not self.audit.totals.pending and not self.problems


def plan(kills: int, chance: random.Random) -> Iterator[tuple[str, ...]]:
    """The parts of each kill: each alone in turn, in random order; from the second round on every third kill is of
    several at once."""
    alone: list[str] = []
    for number in range(kills):
        if number >= len(PARTS) and number % 3 == 2:
            yield tuple(sorted(chance.sample(PARTS, chance.randint(2, 3))))
            continue
        if not alone:
            alone = chance.sample(PARTS, len(PARTS))
        yield (alone.pop(),)


class Storm:
    """A storm over one engine."""

    def __init__(self, folder: Path, seed: int, rate: float, quick: bool = False) -> None:
        self._chance = random.Random(seed)
        self._file = folder / "arrivals.jsonl"
        self._victim = Victim(folder / "home", SETTINGS)
        self._receivers = Receivers(self._file, [each.receiver for each in WANTED if not each.pulled])
        self._publishers = [Publisher(self._victim.gateway, topic, rate / len(TOPICS)) for topic in TOPICS]
        self._arrivals = Arrivals(self._file, self._publishers, STEADY)
        self._names: dict[str, str] = {}
        self._kills: list[Kill] = []
        self._next_change = 0.0
        self._quick = quick
        self.problems: list[str] = []

    def run(self, kills: int, minutes: float | None = None) -> Outcome:
        """This number of kills, or fewer within `minutes`."""
        began, since_ms = time.monotonic(), int(time.time() * 1000) - 1000
        try:
            with self._receivers:
                self._victim.up()
                puller = self._subscribe()
                for publisher in self._publishers:
                    publisher.start()
                puller.start()
                self._arrivals.first(time.time(), 60, self._change_behaviour)
                before = self._victim.usage()
                deadline = None if minutes is None else began + minutes * 60
                for parts in plan(kills, self._chance):
                    if deadline is not None and time.monotonic() > deadline:
                        break
                    self._strike(parts)
                for name in self._changing:
                    self._receivers.behave(name, "well")
                for publisher in self._publishers:
                    publisher.stop()
                report = settle(self._victim.kafka, since_ms, _DRAIN_S)
                after = self._victim.usage()
                record = self._collect(puller)
                logged = states(self._victim.kafka, self._names)
        finally:
            self._victim.end()
        refused = sum((Counter(publisher.refused) for publisher in self._publishers), Counter[str]())
        findings = judge(record, logged, BATCH_WAIT_S)
        return Outcome(record, findings, report, before, after, refused, time.monotonic() - began, self.problems)

    @property
    def _changing(self) -> list[str]:
        return [each.receiver for each in WANTED if not each.pulled and each.receiver != STEADY]

    def _subscribe(self) -> Puller:
        with Client(self._victim.gateway) as client:
            for name, topic, raw, delivery in (
                (STEADY, "storm//.", False, None),
                ("notify", "storm/a", False, None),
                ("subtree", "storm/a//.", False, None),
                ("raw", "storm/b", True, None),
                ("strict", "storm/b|storm/c", False, Delivery(strict=True)),
                ("stubborn", "storm/b|storm/c", True, Delivery(reliability="strict")),
                ("timely", "storm/a|storm/c", False, Delivery(reliability="timely")),
            ):
                made = client.subscribe(topic, to=self._receivers.url(name), raw=raw, delivery=delivery)
                self._names[made.address.rpartition("/")[2]] = name
            pull_point = client.create_pull_point()
            made = client.subscribe("storm//.", to=pull_point)
            self._names[made.address.rpartition("/")[2]] = "pull"
        return Puller(self._victim.gateway, pull_point.address, "pull", self._file)

    def _strike(self, parts: tuple[str, ...]) -> None:
        self._change_for(self._chance.uniform(0.3, 1.5 if self._quick else 8.0))
        deadline = time.monotonic() + _START_S
        at = time.time()
        while not (hit := self._victim.kill(parts)) and time.monotonic() < deadline:
            # It is restarting.
            self._change_for(0.1)
            at = time.time()
        if not hit:
            self.problems.append(f"no process of {'+'.join(parts)} was running")
            return
        if "supervisor" in hit:
            self._victim.up()
        self._kills.append(Kill(at, hit))
        # Some kills do not wait for the end of the recovery from the previous one.
        hasty = not self._quick and self._chance.random() < 0.25
        if hasty:
            self._change_for(self._chance.uniform(0.1, 10.0))
        delivered = self._arrivals.first(at + _ENDED_S, 0.0 if hasty else _RECOVERY_S, self._change_behaviour)
        self._kills[-1] = Kill(at, hit, delivered)
        if delivered is None and not hasty:
            self.problems.append(f"nothing was delivered within {_RECOVERY_S:g} s after the kill of {'+'.join(hit)}")
        after = "not before the next kill" if delivered is None else f"after {delivered - at:5.1f} s"
        print(f"{len(self._kills):4}  {'+'.join(hit):<28} next delivery {after}", flush=True)

    def _change_for(self, seconds: float) -> None:
        """Change the behaviour of receivers for some time."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._change_behaviour()
            time.sleep(min(0.05, left))

    def _change_behaviour(self) -> None:
        if (now := time.monotonic()) >= self._next_change:
            self._next_change = now + self._chance.uniform(0.3, 2.0)
            self._receivers.behave(self._chance.choice(self._changing), self._chance.choice(BEHAVIOURS))

    def _collect(self, puller: Puller) -> Record:
        record = Record(list(WANTED), kills=self._kills)
        for publisher in self._publishers:
            record.accepted += publisher.accepted
        wanted = {each.mark for each in record.accepted}
        pulled = self._file.with_name(f"{self._file.stem}-pull.jsonl")
        deadline = time.monotonic() + 60
        # Messages in an answer of a killed gateway are handed out again later.
        while time.monotonic() < deadline:
            if pulled.exists() and wanted <= {mark for each in arrivals(pulled) for mark in each.marks}:
                break
            time.sleep(0.5)
        puller.stop()
        record.arrivals += itertools.chain(arrivals(self._file), arrivals(pulled) if pulled.exists() else ())
        return record


def show(report: Report, outcome: Outcome) -> None:
    """The outcome as tables and lines."""
    kills, findings, audit = outcome.record.kills, outcome.findings, outcome.audit
    twice = sum(findings.duplicates.values()) + len(findings.unexplained)
    with report.table("the storm", "what", "figure") as table:
        table.add("kills", len(kills))
        table.add("seconds", outcome.seconds)
        table.add("accepted", len(outcome.record.accepted))
        for answer, count in outcome.refused.items():
            table.add(f"not accepted: {answer}", count)
        for name in ("expected", "delivered", "given_up", "dropped"):
            table.add(f"deliveries {name.replace('_', ' ')}", getattr(findings, name))
        for kind, found in findings.faults.items():
            table.add(f"FAULT: {kind}", len(found))
        table.add("duplicates per kill", twice / len(kills) if kills else 0.0)
        table.add("most duplicates of one kill", max(findings.by_kill.values(), default=0))
        table.add("audit --deep: deliveries", audit.matches)
        table.add("audit --deep: pending", audit.totals.pending)
        table.add("audit --deep --order: unbalanced", audit.unbalanced)
        table.add("audit --order: first attempts", audit.first_attempts)
        table.add("audit --order: undecided", audit.undecided)
    times: dict[str, list[float]] = defaultdict(list)
    for kill in kills:
        if kill.delivered_again is not None:
            name = kill.parts[0] if len(kill.parts) == 1 else "several at once"
            times[name].append(kill.delivered_again - kill.at)
    with report.table("time until the next delivery", "killed", "times", "median s", "longest s") as table:
        for part, each in sorted(times.items()):
            table.add(part, len(each), statistics.median(each), max(each))
    columns = ("part", "MiB before", "MiB after", "threads before", "after", "files before", "after ")
    with report.table("usage", *columns) as table:
        for part, before in outcome.before.items():
            after = outcome.after[part]
            memory = (before.memory_mib, after.memory_mib)
            table.add(part, *memory, before.threads, after.threads, before.descriptors, after.descriptors)
    print(findings.describe())
    for problem in (*audit.problems[:20], *audit.notes, *outcome.problems):
        print(f"    {problem}")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--minutes", type=float, help="no kill after this time")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--rate", type=float, default=60.0, help="notifications per second, all topics together")
    parser.add_argument("--home", type=Path, help="keep everything in this new folder, to look at it afterwards")


def measure(report: Report) -> bool:
    chosen = report.options
    print(f"seed {chosen.seed}", flush=True)
    with kept(chosen.home, "storm-") as folder:
        outcome = Storm(folder, chosen.seed, chosen.rate).run(chosen.kills, chosen.minutes)
    show(report, outcome)
    print("\nall held" if outcome.well else "\nNOT ALL HELD")
    return outcome.well


if __name__ == "__main__":
    run(measure, options)
