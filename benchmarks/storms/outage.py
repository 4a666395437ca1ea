"""An outage of an engine under load: Kafka is frozen, or the disk is full; afterwards it must continue without help.

    python -m benchmarks.storms.outage kafka [--minutes 10]
    python -m benchmarks.storms.outage disk [--minutes 2] [--disk FOLDER]

A frozen broker (SIGSTOP) keeps its connections open without answering, which is worse than a stopped one. The full
disk holds all files of the engine: Kafka's logs, checkpoints, tables, parked deliveries, metrics and log files.
Without `--disk` it is a small one in memory, which only root may mount; the disk of FOLDER is filled to its last byte.
Meanwhile publishers get a 503, and `status` and `doctor` name the full disk. Every message with a 202, before, during
or after the outage, must arrive. The exit status is 0 if all of it holds.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from arborcast.client import Client
from arborcast.dispatch.operations.audit import Report as Audit
from benchmarks.report import Report, run
from benchmarks.storms.delivery_states import settle, states
from benchmarks.storms.disk import Filling, small_disk
from benchmarks.storms.judge import Findings, judge
from benchmarks.storms.load import Publisher, first_arrival
from benchmarks.storms.receivers import Receivers
from benchmarks.storms.record import Kill, Record, Wanted, arrivals
from benchmarks.storms.victim import Victim

TOPIC = "outage/a"
HEALTHY, FAILING = "well", "failing"
MEGABYTES = 700

BUDGET_S = 2.0
DRAIN_S = 240.0

# Messages are parked while the disk is full, and tried again soon.
SETTINGS = {
    "retry.retransmissions": "100",
    "retry.first_wait_s": "0.5",
    "retry.longest_wait_s": "5",
    "retry.longest_probe_s": "5",
    "tables.interval_s": "2",
    # For a busy machine.
    "stack.start_timeout_s": "400",
}


@dataclass
class Outcome:
    """The result; `back_s` is from the end of the outage to the first delivery of a message accepted after it."""

    accepted: int
    refused: dict[str, int]
    back_s: float | None
    restarts: dict[str, int]
    findings: Findings
    audit: Audit
    problems: list[str] = field(default_factory=list)

    @property
    def well(self) -> bool:
        """Whether every promise held."""
        audited = self.audit.balanced and not self.audit.totals.pending
        return self.back_s is not None and audited and not self.findings.faults and not self.problems


# Makes an outage of this number of seconds; returns the problems found.
Outage = Callable[[Victim, float], list[str]]


def frozen_kafka(victim: Victim, seconds: float) -> list[str]:
    """Stop the broker by a signal."""
    (broker,) = victim.processes()["kafka"]
    broker.send_signal(signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    return []


def full_disk(disk: Path) -> Outage:
    """Fill the disk."""

    def outage(victim: Victim, seconds: float) -> list[str]:
        problems = []
        with _filled(disk) as filling:
            filling.keep_full(seconds / 2)
            for command in ("status", "doctor"):
                text = victim.output(command)
                print(f"--- {command}, with the disk full:\n{text}")
                if str(victim.home.path) not in text or "MiB" not in text:
                    problems.append(f"{command} does not name the full disk")
            filling.keep_full(seconds / 2)
        return problems

    return outage


@contextmanager
def _filled(disk: Path) -> Iterator[Filling]:
    filling = Filling(disk)
    try:
        filling.fill()
        yield filling
    finally:
        filling.remove()


def survive(home: Path, folder: Path, seconds: float, outage: Outage, parts: tuple[str, ...]) -> Outcome:
    """One outage of these parts of an engine in `home`; `folder` is for the record."""
    victim, file = Victim(home, SETTINGS), folder / "arrivals.jsonl"
    publisher = Publisher(f"{victim.gateway}/wsn/NotificationBroker", TOPIC, 20.0, poisoned=0)
    since_ms = int(time.time() * 1000) - 1000
    try:
        with Receivers(file, [HEALTHY, FAILING]) as receivers:
            victim.up()
            receivers.behave(FAILING, "status/500")
            with Client(victim.gateway) as client:
                made = {name: client.subscribe(TOPIC, to=receivers.url(name)) for name in (HEALTHY, FAILING)}
            publisher.start()
            before = first_arrival(file, publisher, time.time(), 60.0, HEALTHY)
            began = time.time()
            problems = outage(victim, seconds)
            over = time.time()
            if before is None:
                problems.append("nothing was delivered before the outage")
            arrived = first_arrival(file, publisher, over, DRAIN_S, HEALTHY)
            receivers.behave(FAILING, "well")
            publisher.stop()
            audit = settle(victim.kafka, since_ms, DRAIN_S)
            restarts = victim.restarts()
            logged = states(victim.kafka, {each.address.rpartition("/")[2]: name for name, each in made.items()})
            record = Record(
                [Wanted(name, frozenset({TOPIC})) for name in made],
                publisher.accepted,
                list(arrivals(file)),
                # A part may have ended during a push.
                [Kill(at, parts, None, arrived or over) for at in (began, over)],
            )
    finally:
        victim.end()
    back_s = None if arrived is None else arrived - over
    findings = judge(record, logged, BUDGET_S)
    return Outcome(len(publisher.accepted), publisher.refused, back_s, restarts, findings, audit, problems)


def run_kafka(folder: Path, seconds: float) -> Outcome:
    """Kafka frozen for this time: publishers get only 503."""
    outcome = survive(folder / "home", folder, seconds, frozen_kafka, ("kafka",))
    if not set(outcome.refused) <= {"503"}:
        outcome.problems.append(f"publishers got {outcome.refused}")
    return outcome


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("kafka", "disk"))
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--disk", type=Path, metavar="FOLDER")


def measure(report: Report) -> bool:
    chosen = report.options
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outage-"))).absolute()
        if chosen.what == "kafka":
            outcome = run_kafka(folder, chosen.minutes * 60)
        else:
            disk = chosen.disk or stack.enter_context(small_disk(folder / "disk", MEGABYTES))
            if disk is None:
                sys.exit("only root may mount a disk to fill: give one with --disk FOLDER")
            place = disk.absolute()
            outcome = survive(place / "home", folder, chosen.minutes * 60, full_disk(place), ("disk",))
    with report.table(f"{chosen.what} away for {chosen.minutes:g} minutes", "what", "figure") as table:
        table.add("accepted", outcome.accepted)
        for answer, count in outcome.refused.items():
            table.add(f"not accepted: {answer}", count)
        table.add("seconds until the next delivery", outcome.back_s)
        for part, times in outcome.restarts.items():
            table.add(f"restarts of {part}", times)
        table.add("deliveries that do not balance", outcome.audit.unbalanced)
    print(outcome.findings.describe())
    for problem in outcome.problems:
        print(f"PROBLEM: {problem}")
    return outcome.well


if __name__ == "__main__":
    run(measure, options)
