"""An outage: Kafka does not answer for a long time, under load, and then does again.

    python -m benchmarks.storms.outage --minutes 10 [--json FILE]

The broker of a whole engine is frozen (SIGSTOP): its connections stay open and nothing ever comes back, which is worse
than one that is gone. Publishers must be told to come back later, within their patience; afterwards everything has to
go on by itself, and what got a 202, before, during or after, must arrive. The exit status says whether it is so.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from arborcast.client import Client
from arborcast.dispatch.operations.audit import Report
from benchmarks.storms.books import settle, states
from benchmarks.storms.judge import Findings, judge
from benchmarks.storms.load import Publisher, first_arrival
from benchmarks.storms.receivers import Receivers
from benchmarks.storms.record import Kill, Record, Wanted, arrivals
from benchmarks.storms.victim import Victim

TOPIC = "outage/a"
NAME = "one"

_BUDGET_S = 2.0
_DRAIN_S = 180.0


@dataclass
class Outcome:
    """What an outage has shown; `back_s` is from its end to the first delivery of a message accepted after it."""

    seconds: float
    accepted: int
    refused: dict[str, int]
    back_s: float | None
    restarts: dict[str, int]
    findings: Findings
    audit: Report

    @property
    def well(self) -> bool:
        """Whether all that must hold did."""
        told = set(self.refused) <= {"503"}
        return self.back_s is not None and told and not self.findings.faults and self.audit.balanced


def run(folder: Path, seconds: float, rate: float = 20.0) -> Outcome:
    """One outage of so many seconds."""
    victim, file = Victim(folder / "home", {}), folder / "arrivals.jsonl"
    publisher = Publisher(f"{victim.gateway}/wsn/NotificationBroker", TOPIC, rate, poisoned=0)
    since_ms = int(time.time() * 1000)
    try:
        with Receivers(file, [NAME]) as receivers:
            victim.up()
            with Client(victim.gateway) as client:
                made = client.subscribe(TOPIC, to=receivers.url(NAME))
            publisher.start()
            first_arrival(file, publisher, time.time(), 60.0)
            (broker,) = victim.processes()["kafka"]
            frozen = time.time()
            broker.send_signal(signal.SIGSTOP)
            try:
                time.sleep(seconds)
            finally:
                os.kill(broker.pid, signal.SIGCONT)
            thawed = time.time()
            arrived = first_arrival(file, publisher, thawed, _DRAIN_S)
            publisher.stop()
            report = settle(victim.kafka, since_ms, _DRAIN_S)
            restarts = victim.restarts()
            books = states(victim.kafka, {made.address.rpartition("/")[2]: NAME})
            record = Record(
                [Wanted(NAME, frozenset({TOPIC}))],
                publisher.accepted,
                list(arrivals(file)),
                [Kill(frozen, ("kafka",), None, arrived or thawed)],
            )
    finally:
        victim.end()
    return Outcome(
        seconds,
        len(publisher.accepted),
        publisher.refused,
        None if arrived is None else arrived - thawed,
        restarts,
        judge(record, books, _BUDGET_S),
        report,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="outage-") as folder:
        outcome = run(Path(folder).absolute(), options.minutes * 60)
    print(f"Kafka frozen for {outcome.seconds:g} s; {outcome.accepted:,} accepted; not accepted: {outcome.refused}")
    print("never back" if outcome.back_s is None else f"delivered again {outcome.back_s:.1f} s after its end")
    print(f"restarts: {outcome.restarts}")
    print(outcome.findings.describe())
    print("audit: " + ("balanced" if outcome.audit.balanced else f"{outcome.audit.unbalanced} DO NOT BALANCE"))
    if options.json:
        options.json.write_text(json.dumps(asdict(outcome), indent=1, default=str) + "\n")
    sys.exit(0 if outcome.well else 1)


if __name__ == "__main__":
    main()
