"""A full disk: everything of an engine is on one small disk, which fills up under load, and is given room again.

    python -m benchmarks.storms.full_disk [--seconds 120] [--disk FOLDER] [--json FILE]

Kafka's logs, checkpoints, tables, what is parked, the history of metrics and all log files share the disk. Without
--disk a small one in memory is mounted, for which one has to be root; FOLDER is a folder on a disk of your own, which
is filled to its last byte, so choose it well. Meanwhile publishers must be told to come back later, `status` and
`doctor` must name what is full; afterwards everything has to come back by itself, and what got a 202 must arrive. The
exit status says whether it is so.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from arborcast.client import Client
from arborcast.dispatch.operations.audit import Report
from benchmarks.storms.books import settle, states
from benchmarks.storms.disk import Filling, small_disk
from benchmarks.storms.judge import Findings, judge
from benchmarks.storms.load import Publisher, first_arrival
from benchmarks.storms.receivers import Receivers
from benchmarks.storms.record import Kill, Record, Wanted, arrivals
from benchmarks.storms.victim import Victim

TOPIC = "full/a"
WELL, FAILING = "well", "failing"

MEGABYTES = 700

_BUDGET_S = 2.0
_DRAIN_S = 240.0

# So that something is parked while the disk is full, and all of it is tried again soon.
_SETTINGS = {
    "retry.retransmissions": "100",
    "retry.first_wait_s": "0.5",
    "retry.longest_wait_s": "5",
    "retry.longest_probe_s": "5",
    "tables.interval_s": "2",
}


@dataclass
class Outcome:
    """What a full disk has shown; `back_s` is from the moment when there was room again to the first delivery of a
    message accepted after it."""

    seconds: float
    accepted: int
    refused: dict[str, int]
    back_s: float | None
    restarts: dict[str, int]
    findings: Findings
    audit: Report
    said: dict[str, str] = field(default_factory=dict)
    """What commands said while the disk was full."""
    problems: list[str] = field(default_factory=list)

    @property
    def well(self) -> bool:
        """Whether all that must hold did."""
        books = self.audit.balanced and not self.audit.totals.pending
        return self.back_s is not None and books and not self.findings.faults and not self.problems


def run(folder: Path, disk: Path, seconds: float, rate: float = 20.0) -> Outcome:
    """Fill the disk for so many seconds."""
    victim, file = Victim(disk / "home", _SETTINGS), folder / "arrivals.jsonl"
    publisher = Publisher(f"{victim.gateway}/wsn/NotificationBroker", TOPIC, rate, poisoned=0)
    filling, since_ms = Filling(disk), int(time.time() * 1000) - 1000
    said: dict[str, str] = {}
    problems: list[str] = []
    try:
        with Receivers(file, [WELL, FAILING]) as receivers:
            victim.up()
            receivers.behave(FAILING, "status/500")
            with Client(victim.gateway) as client:
                made = {name: client.subscribe(TOPIC, to=receivers.url(name)) for name in (WELL, FAILING)}
            publisher.start()
            if first_arrival(file, publisher, time.time(), 60.0, WELL) is None:
                problems.append("nothing was delivered before the disk was filled")
            full = time.time()
            filling.fill()
            filling.keep_full(seconds / 2)
            for command in ("status", "doctor"):
                said[command] = victim.say(command)
                if str(victim.home.path) not in said[command] or "MiB" not in said[command]:
                    problems.append(f"{command} does not say what is full")
            filling.keep_full(seconds / 2)
            roomy = time.time()
            filling.remove()
            arrived = first_arrival(file, publisher, roomy, _DRAIN_S, WELL)
            receivers.behave(FAILING, "well")
            publisher.stop()
            report = settle(victim.kafka, since_ms, _DRAIN_S)
            restarts = victim.restarts()
            books = states(victim.kafka, {each.address.rpartition("/")[2]: name for name, each in made.items()})
            record = Record(
                [Wanted(name, frozenset({TOPIC})) for name in made],
                publisher.accepted,
                list(arrivals(file)),
                # Whatever ended while there was no room may have been in the middle of a push.
                [Kill(at, ("disk",), None, arrived or roomy) for at in (full, roomy)],
            )
    finally:
        filling.remove()
        victim.end()
    return Outcome(
        seconds,
        len(publisher.accepted),
        publisher.refused,
        None if arrived is None else arrived - roomy,
        restarts,
        judge(record, books, _BUDGET_S),
        report,
        said,
        problems,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--disk", type=Path, metavar="FOLDER")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="full-disk-"))).absolute()
        disk = options.disk or stack.enter_context(small_disk(folder / "disk", MEGABYTES))
        if disk is None:
            sys.exit("only root may mount a disk to fill: give one with --disk FOLDER")
        outcome = run(folder, disk.absolute(), options.seconds)
    for command, words in outcome.said.items():
        print(f"--- {command}, with the disk full:\n{words}")
    print(f"Full for {outcome.seconds:g} s; {outcome.accepted:,} accepted; not accepted: {outcome.refused}")
    print("never back" if outcome.back_s is None else f"delivered again {outcome.back_s:.1f} s after there was room")
    print(f"restarts: {outcome.restarts}")
    print(outcome.findings.describe())
    print("audit: " + ("balanced" if outcome.audit.balanced else f"{outcome.audit.unbalanced} DO NOT BALANCE"))
    for problem in outcome.problems:
        print(f"PROBLEM: {problem}")
    if options.json:
        options.json.write_text(json.dumps(asdict(outcome), indent=1, default=str) + "\n")
    sys.exit(0 if outcome.well else 1)


if __name__ == "__main__":
    main()
