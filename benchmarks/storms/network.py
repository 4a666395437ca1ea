"""Faults of the network of an engine under load; after each it must continue without help.

    python -m benchmarks.storms.network [--places PLACE ...] [--faults FAULT ...] [--seconds 20 ...]

A place is a part with its connections: `publishers` to the gateway; `gateway`, `driver` and `workers` to Kafka;
`subscribers` from the workers. Each fault is applied to each place for this number of seconds:

    delay      200 to 500 ms for each piece of data         requests   the client's packets are lost
    loss       a tenth of the packets in both directions    answers    the packets to the client are lost
    resets     a tenth of the answers end in their middle   cut        nothing passes
    half-open  open connections carry no data and are not closed; new ones work

Every message with a 202 must arrive, in order, and without repetition except for pushes whose answer may have been lost
or whose row Kafka may not have. It needs Linux with `unshare`, `ip` and `nft`, and no root. The exit status is 0 if all
of it holds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from arborcast.client import Client, Delivery
from arborcast.dispatch.operations.audit import Report as Audit
from benchmarks.report import Report, run
from benchmarks.storms import links
from benchmarks.storms.delivery_states import settle, states
from benchmarks.storms.judge import Findings, Logged, judge
from benchmarks.storms.links import FAULTS, Links
from benchmarks.storms.load import Publisher, first_arrival
from benchmarks.storms.outage import BUDGET_S, DRAIN_S, FAILING, HEALTHY, SETTINGS, TOPIC
from benchmarks.storms.receivers import Receivers
from benchmarks.storms.record import Kill, Record, Wanted, arrivals
from benchmarks.storms.victim import Victim

PLACES = ("publishers", "gateway", "driver", "workers", "subscribers")
STRICT = "strict"
WANTED = (
    Wanted(HEALTHY, frozenset({TOPIC})),
    Wanted(FAILING, frozenset({TOPIC})),
    Wanted(STRICT, frozenset({TOPIC}), strict=True, reliability="strict"),
)

_PLACE_OF_PART = {"gateway": "gateway", "jvm": "driver", "driver": "driver", "worker": "workers"}

_PER_SECOND = 20.0
_BACK_S = 240.0
_APART_S = 6.0

# Repetitions for one subscription: a push in flight, those of 100 ms, and those of the half second until Kafka's
# silence is detected.
_TWICE = 50 + int(0.6 * _PER_SECOND)

_WITHIN = "STORM_IN_NAMESPACE"


@dataclass(frozen=True)
class Strike:
    """A fault, and the seconds from its end to the first delivery of a message accepted after it."""

    place: str
    fault: str
    began: float
    over: float
    back_s: float | None
    restarts: int
    findings: Findings = field(default_factory=Findings)

    @property
    def kill(self) -> Kill:
        """The fault as a span in which answers and rows may be lost."""
        return Kill(self.began, (self.place,), None, self.over + (self.back_s or 0.0))

    @property
    def excuses(self) -> bool:
        """Whether repetitions are possible: the connections to receivers or of the writers of rows are broken."""
        return self.place in ("driver", "workers", "subscribers") and self.fault not in ("delay", "loss")

    @property
    def twice(self) -> int:
        return self.findings.duplicates.total() + len(self.findings.unexplained)


@dataclass
class Outcome:
    """The result of all faults."""

    accepted: int
    refused: dict[str, int]
    strikes: list[Strike]
    findings: Findings
    audit: Audit
    problems: list[str]

    @property
    def well(self) -> bool:
        """Whether every promise held."""
        audited = self.audit.balanced and not self.audit.totals.pending
        return audited and not self.findings.faults and not self.problems


def place_of(victim: Victim, client: int, service: int) -> str:
    """The place of a connection to Kafka or the gateway, from its ports."""
    socket = _socket(client, service)
    if service == victim.gateway_port:
        return "publishers" if _has(psutil.Process(), socket) else ""
    parts = victim.processes()
    return next((place for part, place in _PLACE_OF_PART.items() if any(_has(p, socket) for p in parts[part])), "")


def _socket(client: int, service: int) -> str:
    """The socket of a connection between these ports, as in the list of a process' open files."""
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            _, local, remote, _, _, _, _, _, _, inode, *_ = line.split()
            ports = tuple(int(each.rpartition(":")[2], 16) for each in (local, remote))
            if ports == (client, service) and inode != "0":
                return f"socket:[{inode}]"
    return ""


def _has(process: psutil.Process, socket: str) -> bool:
    # psutil has the sockets of a process, too, and takes a hundred times as long for many.
    files = Path(f"/proc/{process.pid}/fd")
    with suppress(OSError):
        for each in files.iterdir():
            with suppress(FileNotFoundError):
                if os.readlink(each) == socket:
                    return True
    return False


def survive(folder: Path, places: list[str], faults: list[str], seconds: list[float]) -> Outcome:
    """Apply these faults to one engine, one after the other."""
    victim, file = Victim(folder / "home", SETTINGS), folder / "arrivals.jsonl"
    publisher = Publisher(f"{victim.gateway}/wsn/NotificationBroker", TOPIC, _PER_SECOND, poisoned=0)
    since_ms = int(time.time() * 1000) - 1000
    strikes, problems = [], []
    try:
        with Receivers(file, [each.receiver for each in WANTED]) as receivers:
            ports = [urlsplit(receivers.url(each.receiver)).port or 0 for each in WANTED]
            parted = [victim.gateway_port, victim.kafka_port]
            broken = Links({"subscribers": ports}, parted, PLACES, lambda *ports: place_of(victim, *ports))
            victim.up()
            with Client(victim.gateway) as client:
                made = {
                    each.receiver: client.subscribe(
                        TOPIC,
                        to=receivers.url(each.receiver),
                        delivery=Delivery(reliability="strict") if each.strict else None,
                    )
                    for each in WANTED
                }
            publisher.start()
            if first_arrival(file, publisher, time.time(), 60.0, HEALTHY) is None:
                problems.append("nothing was delivered before the first fault")
            for place, fault, length in product(places, faults, seconds):
                strike = _strike(place, fault, length, victim, broken, receivers, publisher, file, problems)
                strikes.append(strike)
                back = "never" if strike.back_s is None else f"after {strike.back_s:.1f} s"
                print(f"{place:<12} {fault:<10} {length:4g} s  next delivery {back}", flush=True)
                time.sleep(_APART_S)
            publisher.stop()
            audit = settle(victim.kafka, since_ms, DRAIN_S)
            logged = states(victim.kafka, {each.address.rpartition("/")[2]: name for name, each in made.items()})
            kills = [each.kill for each in strikes if each.excuses]
            record = Record(list(WANTED), publisher.accepted, list(arrivals(file)), kills)
            broken.close()
    finally:
        victim.end()
    strikes = _judged(strikes, record, logged)
    problems += [
        f"{each.twice} repetitions for {each.place}, {each.fault}"
        for each in strikes
        if each.place in ("driver", "workers") and each.twice > _TWICE * len(WANTED)
    ]
    findings = judge(record, logged, BUDGET_S)
    return Outcome(len(publisher.accepted), publisher.refused, strikes, findings, audit, problems)


def _strike(
    place: str,
    fault: str,
    length: float,
    victim: Victim,
    broken: Links,
    receivers: Receivers,
    publisher: Publisher,
    file: Path,
    problems: list[str],
) -> Strike:
    restarts = sum(victim.restarts().values())
    # Messages wait for their retry meanwhile.
    receivers.behave(FAILING, "status/500")
    began = time.time()
    try:
        with broken.broken(place, FAULTS[fault]):
            time.sleep(length)
    except AssertionError as nothing:
        problems.append(f"{place}, {fault}: {nothing}")
    over = time.time()
    arrived = first_arrival(file, publisher, over, _BACK_S, HEALTHY)
    receivers.behave(FAILING, "well")
    if arrived is None:
        problems.append(f"{place}, {fault}: nothing was delivered within {_BACK_S:g} s after the fault")
    back_s = None if arrived is None else arrived - over
    return Strike(place, fault, began, over, back_s, sum(victim.restarts().values()) - restarts)


def _judged(strikes: list[Strike], record: Record, logged: Logged) -> list[Strike]:
    """The faults, each with the findings about messages accepted around it."""
    begins = [each.began - _APART_S / 2 for each in strikes] + [float("inf")]
    judged = []
    for strike, (begin, end) in zip(strikes, pairwise(begins), strict=True):
        accepted = [each for each in record.accepted if begin <= each.at < end]
        marks = {each.mark for each in accepted}
        some = [replace(each, marks=tuple(m for m in each.marks if m in marks)) for each in record.arrivals]
        arrived = [each for each in some if each.marks]
        kills = [strike.kill] if strike.excuses else []
        judged.append(
            replace(strike, findings=judge(Record(record.wanted, accepted, arrived, kills), logged, BUDGET_S))
        )
    return judged


def show(report: Report, outcome: Outcome) -> None:
    """The outcome as tables and lines."""
    columns = ("place", "fault", "seconds", "accepted", "lost", "out of order", "twice", "back s", "restarts")
    with report.table("faults of the network", *columns) as table:
        for each in outcome.strikes:
            found = each.findings
            lost = len(found.lost) + len(found.claimed) + len(found.left_out)
            disorder = len(found.disordered) + len(found.overtaken)
            accepted = found.expected // len(WANTED)
            length = round(each.over - each.began)
            table.add(each.place, each.fault, length, accepted, lost, disorder, each.twice, each.back_s, each.restarts)
    with report.table("all faults", "what", "figure") as table:
        table.add("accepted", outcome.accepted)
        for answer, count in outcome.refused.items():
            table.add(f"not accepted: {answer}", count)
        table.add("audit --deep --order: unbalanced", outcome.audit.unbalanced)
        table.add("audit --deep --order: pending", outcome.audit.totals.pending)
        table.add("audit --order: first attempts", outcome.audit.first_attempts)
    print(outcome.findings.describe())
    for problem in (*outcome.audit.problems[:20], *outcome.audit.notes, *outcome.problems):
        print(f"PROBLEM: {problem}")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--places", nargs="+", choices=PLACES, default=list(PLACES))
    parser.add_argument("--faults", nargs="+", choices=tuple(FAULTS), default=list(FAULTS))
    parser.add_argument("--seconds", nargs="+", type=float, default=[20.0])
    parser.add_argument("--home", type=Path, help="keep everything in this new folder, to look at it afterwards")


def measure(report: Report) -> bool:
    chosen = report.options
    with tempfile.TemporaryDirectory(prefix="network-") as temporary:
        folder = chosen.home or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        outcome = survive(folder.absolute(), chosen.places, chosen.faults, chosen.seconds)
    show(report, outcome)
    print("\nall held" if outcome.well else "\nNOT ALL HELD")
    return outcome.well


if __name__ == "__main__":
    if _WITHIN in os.environ:
        run(measure, options)
    elif not links.possible():
        sys.exit("network namespaces are not possible here: it takes Linux with unshare, ip and nft")
    else:
        within = links.command("benchmarks.storms.network", *sys.argv[1:])
        sys.exit(subprocess.run(within, env={**os.environ, _WITHIN: "1"}, check=False).returncode)
