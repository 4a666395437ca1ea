"""Outages of an engine under load: Kafka is frozen, the disk is full, connections have faults; after each it must
continue without help.

    python -m benchmarks.storms.outage kafka [--minutes 10]
    python -m benchmarks.storms.outage disk [--minutes 2] [--disk FOLDER]
    python -m benchmarks.storms.outage network [--places PLACE ...] [--faults FAULT ...] [--seconds 20 ...]

A frozen broker (SIGSTOP) keeps its connections open without answering, which is worse than a stopped one. The full
disk holds all files of the engine: Kafka's logs, checkpoints, tables, parked deliveries, metrics and log files.
Without `--disk` it is a small one in memory, which only root may mount; the disk of FOLDER is filled to its last byte.
Meanwhile publishers get a 503, and `status` and `doctor` name the full disk.

A place of the network is a part with its connections: `publishers` to the gateway; `gateway`, `driver` and `workers` to
Kafka; `subscribers` from the workers. Each fault is applied to each place for this number of seconds:

    delay      200 to 500 ms for each piece of data         requests   the client's packets are lost
    loss       a tenth of the packets in both directions    answers    the packets to the client are lost
    resets     a tenth of the answers end in their middle   cut        nothing passes
    half-open  open connections carry no data and are not closed; new ones work

It needs Linux with `unshare`, `ip` and `nft`, and no root.

Every message with a 202, before, during or after an outage, must arrive, in order, and without repetition except for
pushes whose answer may have been lost or whose row Kafka may not have. The exit status is 0 if all of it holds.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
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
from benchmarks.storms.disk import Filling, small_disk
from benchmarks.storms.judge import Findings, Logged, judge
from benchmarks.storms.links import FAULTS, Links
from benchmarks.storms.load import Arrivals, Publisher
from benchmarks.storms.receivers import Receivers
from benchmarks.storms.record import Kill, Record, Wanted, arrivals
from benchmarks.storms.victim import Victim, kept

TOPIC = "outage/a"
HEALTHY, FAILING, STRICT = "well", "failing", "strict"
WANTED = (
    Wanted(HEALTHY, frozenset({TOPIC})),
    Wanted(FAILING, frozenset({TOPIC})),
    Wanted(STRICT, frozenset({TOPIC}), strict=True, reliability="strict"),
)
PLACES = ("publishers", "gateway", "driver", "workers", "subscribers")

_PLACE_OF_PART = {"gateway": "gateway", "jvm": "driver", "driver": "driver", "worker": "workers"}

_PER_SECOND = 20.0
_BUDGET_S = 2.0
_BACK_S = 240.0
_APART_S = 6.0
_MEGABYTES = 700

# Repetitions for one subscription: a push in flight, those of 100 ms, and those of the half second until Kafka's
# silence is detected.
_TWICE = 50 + int(0.6 * _PER_SECOND)

_WITHIN = "STORM_IN_NAMESPACE"

# Messages are parked during an outage, and tried again soon.
SETTINGS = {
    "retry.retransmissions": "100",
    "retry.first_wait_s": "0.5",
    "retry.longest_wait_s": "5",
    "retry.longest_probe_s": "5",
    "tables.interval_s": "2",
    # For a busy machine.
    "stack.start_timeout_s": "400",
}


@dataclass(frozen=True)
class Outage:
    """A fault of a place for some seconds. `make` returns the problems found."""

    place: str
    fault: str
    seconds: float
    make: Callable[[Trial, Outage], list[str]]


@dataclass(frozen=True)
class Strike:
    """An outage, and the seconds from its end to the first delivery of a message accepted after it."""

    place: str
    fault: str
    began: float
    over: float
    back_s: float | None
    restarts: int
    findings: Findings = field(default_factory=Findings)

    @property
    def kill(self) -> Kill:
        """The outage as a span in which answers and rows may be lost."""
        return Kill(self.began, (self.place,), self.over + (self.back_s or 0.0))

    @property
    def excuses(self) -> bool:
        """Whether repetitions are possible: the connections to receivers or of the writers of rows are broken."""
        return self.place not in ("publishers", "gateway") and self.fault not in ("delay", "loss")

    @property
    def twice(self) -> int:
        return self.findings.duplicates.total() + len(self.findings.unexplained)


@dataclass
class Outcome:
    """The result of all outages."""

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


class Trial:
    """An engine under load in `home`; `folder` is for the record."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.victim = Victim(home, SETTINGS)
        self.links: Links | None = None
        self._file = folder / "arrivals.jsonl"
        self._receivers = Receivers(self._file, [each.receiver for each in WANTED])
        self._publisher = Publisher(self.victim.gateway, TOPIC, _PER_SECOND, poisoned=0)
        self._arrivals = Arrivals(self._file, [self._publisher], HEALTHY)
        self._problems: list[str] = []

    def run(self, outages: Sequence[Outage], network: bool = False) -> Outcome:
        """These outages, one after the other."""
        since_ms, victim, publisher = int(time.time() * 1000) - 1000, self.victim, self._publisher
        try:
            with self._receivers as receivers, ExitStack() as stack:
                if network:
                    ports = [urlsplit(receivers.url(each.receiver)).port or 0 for each in WANTED]
                    parted = [victim.gateway_port, victim.kafka_port]
                    made = Links({"subscribers": ports}, parted, PLACES, lambda *ports: place_of(victim, *ports))
                    self.links = stack.enter_context(closing(made))
                victim.up()
                receivers.behave(FAILING, "status/500")
                names = self._subscribe()
                publisher.start()
                if self._arrivals.first(time.time(), 60.0) is None:
                    self._problems.append("nothing was delivered before the first outage")
                strikes = [self._strike(each) for each in outages]
                publisher.stop()
                audit = settle(victim.kafka, since_ms, _BACK_S)
                logged = states(victim.kafka, names)
                kills = [each.kill for each in strikes if each.excuses]
                record = Record(list(WANTED), publisher.accepted, list(arrivals(self._file)), kills)
        finally:
            victim.end()
        strikes = _judged(strikes, record, logged)
        self._problems += [
            f"{each.twice} repetitions for {each.place}, {each.fault}"
            for each in strikes
            if each.place in ("driver", "workers") and each.twice > _TWICE * len(WANTED)
        ]
        findings = judge(record, logged, _BUDGET_S)
        return Outcome(len(publisher.accepted), publisher.refused, strikes, findings, audit, self._problems)

    def _subscribe(self) -> dict[str, str]:
        """The names of the receivers by subscription id."""
        names = {}
        with Client(self.victim.gateway) as client:
            for each in WANTED:
                delivery = Delivery(reliability="strict") if each.strict else None
                made = client.subscribe(TOPIC, to=self._receivers.url(each.receiver), delivery=delivery)
                names[made.address.rpartition("/")[2]] = each.receiver
        return names

    def _strike(self, outage: Outage) -> Strike:
        restarts = sum(self.victim.restarts().values())
        # Messages wait for their retry meanwhile.
        self._receivers.behave(FAILING, "status/500")
        began = time.time()
        what = f"{outage.place}, {outage.fault}"
        self._problems += [f"{what}: {each}" for each in outage.make(self, outage)]
        over = time.time()
        arrived = self._arrivals.first(over, _BACK_S)
        self._receivers.behave(FAILING, "well")
        back_s = None if arrived is None else arrived - over
        if back_s is None:
            self._problems.append(f"{what}: nothing was delivered within {_BACK_S:g} s after it")
        back = "never" if back_s is None else f"after {back_s:.1f} s"
        print(f"{outage.place:<12} {outage.fault:<10} {outage.seconds:4g} s  next delivery {back}", flush=True)
        time.sleep(_APART_S)
        more = sum(self.victim.restarts().values()) - restarts
        return Strike(outage.place, outage.fault, began, over, back_s, more)


def frozen_kafka(trial: Trial, outage: Outage) -> list[str]:
    """Stop the broker by a signal."""
    (broker,) = trial.victim.processes()["kafka"]
    broker.send_signal(signal.SIGSTOP)
    try:
        time.sleep(outage.seconds)
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    return []


def full_disk(trial: Trial, outage: Outage) -> list[str]:
    """Fill the disk of the engine."""
    problems, home = [], trial.victim.home.path
    filling = Filling(home.parent)
    try:
        filling.fill()
        filling.keep_full(outage.seconds / 2)
        for command in ("status", "doctor"):
            text = trial.victim.output(command)
            print(f"--- {command}, with the disk full:\n{text}")
            if str(home) not in text or "MiB" not in text:
                problems.append(f"{command} does not name the full disk")
        filling.keep_full(outage.seconds / 2)
    finally:
        filling.remove()
    return problems


def broken_links(trial: Trial, outage: Outage) -> list[str]:
    """A fault of the connections of a place."""
    assert trial.links is not None
    try:
        with trial.links.broken(outage.place, FAULTS[outage.fault]):
            time.sleep(outage.seconds)
    except AssertionError as nothing:
        return [str(nothing)]
    return []


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


def _judged(strikes: list[Strike], record: Record, logged: Logged) -> list[Strike]:
    """The outages, each with the findings about messages accepted around it."""
    begins = [each.began - _APART_S / 2 for each in strikes] + [float("inf")]
    judged = []
    for strike, (begin, end) in zip(strikes, pairwise(begins), strict=True):
        accepted = [each for each in record.accepted if begin <= each.at < end]
        marks = {each.mark for each in accepted}
        some = [replace(each, marks=tuple(m for m in each.marks if m in marks)) for each in record.arrivals]
        arrived = [each for each in some if each.marks]
        kills = [strike.kill] if strike.excuses else []
        findings = judge(Record(record.wanted, accepted, arrived, kills), logged, _BUDGET_S)
        judged.append(replace(strike, findings=findings))
    return judged


def run_kafka(folder: Path, seconds: float) -> Outcome:
    """Kafka frozen for this time: publishers get only 503."""
    outcome = Trial(folder / "home", folder).run([Outage("kafka", "frozen", seconds, frozen_kafka)])
    if not set(outcome.refused) <= {"503"}:
        outcome.problems.append(f"publishers got {outcome.refused}")
    return outcome


def show(report: Report, outcome: Outcome) -> None:
    """The outcome as tables and lines."""
    columns = ("place", "fault", "seconds", "accepted", "lost", "out of order", "twice", "back s", "restarts")
    with report.table("outages", *columns) as table:
        for each in outcome.strikes:
            found = each.findings
            lost = len(found.lost) + len(found.claimed) + len(found.left_out)
            disorder = len(found.disordered) + len(found.overtaken)
            accepted = found.expected // len(WANTED)
            length = round(each.over - each.began)
            table.add(each.place, each.fault, length, accepted, lost, disorder, each.twice, each.back_s, each.restarts)
    with report.table("all outages", "what", "figure") as table:
        table.add("accepted", outcome.accepted)
        for answer, count in outcome.refused.items():
            table.add(f"not accepted: {answer}", count)
        table.add("audit --deep --order: unbalanced", outcome.audit.unbalanced)
        table.add("audit --deep --order: pending", outcome.audit.totals.pending)
        table.add("audit --order: first attempts", outcome.audit.first_attempts)
    print(outcome.findings.describe())
    for problem in (*outcome.audit.problems[:20], *outcome.audit.notes, *outcome.problems):
        print(f"PROBLEM: {problem}")
    print("\nall held" if outcome.well else "\nNOT ALL HELD")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("kafka", "disk", "network"))
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--disk", type=Path, metavar="FOLDER")
    parser.add_argument("--places", nargs="+", choices=PLACES, default=list(PLACES))
    parser.add_argument("--faults", nargs="+", choices=tuple(FAULTS), default=list(FAULTS))
    parser.add_argument("--seconds", nargs="+", type=float, default=[20.0])
    parser.add_argument("--home", type=Path, help="keep everything in this new folder, to look at it afterwards")


def measure(report: Report) -> bool:
    chosen = report.options
    with kept(chosen.home, "outage-") as folder, ExitStack() as stack:
        match chosen.what:
            case "kafka":
                outcome = run_kafka(folder, chosen.minutes * 60)
            case "disk":
                disk = chosen.disk or stack.enter_context(small_disk(folder / "disk", _MEGABYTES))
                if disk is None:
                    sys.exit("only root may mount a disk to fill: give one with --disk FOLDER")
                outage = Outage("disk", "full", chosen.minutes * 60, full_disk)
                outcome = Trial(disk.absolute() / "home", folder).run([outage])
            case _:
                every = product(chosen.places, chosen.faults, chosen.seconds)
                outcome = Trial(folder / "home", folder).run([Outage(*each, broken_links) for each in every], True)
    show(report, outcome)
    return outcome.well


if __name__ == "__main__":
    if "network" not in sys.argv or _WITHIN in os.environ:
        run(measure, options)
    elif not links.possible():
        sys.exit("network namespaces are not possible here: it takes Linux with unshare, ip and nft")
    else:
        within = links.command("benchmarks.storms.outage", *sys.argv[1:])
        sys.exit(subprocess.run(within, env={**os.environ, _WITHIN: "1"}, check=False).returncode)
