"""Compares the record of a storm with the engine's logs: lost, disordered and unexplained repeated deliveries.

Pure. The logs are evidence against the engine only: a message that was given up must be in the logs as such, and one
that was delivered must be in the record of its receiver, too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.storms.record import Accepted, Arrival, Kill, Record, Wanted

States = Mapping[tuple[str, str], str]
"""The last state of a delivery, by (receiver, mark); for dropped ones the reason."""

Pushes = Mapping[tuple[str, str], Sequence[tuple[float, float]]]
"""Begin and end of each successful push with a row, by (receiver, mark)."""


class Logged(NamedTuple):
    """The evidence of the engine's logs."""

    states: States
    pushes: Pushes


# An answer of the last tenth of a second before a kill may have no row; the rest is for slow machines.
BEFORE_S = 1.0

# After the first delivery others may still be in flight.
AFTER_S = 3.0

_DROPPED = frozenset({"timely", "resources"})
_ENDED = frozenset({"dead", "expired", "cancelled"}) | _DROPPED
_NAMED = 20


@dataclass
class Findings:
    """The result. `lost` to `unexplained` must be empty: they name receiver and mark. `by_kill` is the number of
    duplicates in each span of `troubles`."""

    expected: int = 0
    delivered: int = 0
    given_up: int = 0
    dropped: int = 0
    lost: list[str] = field(default_factory=list)
    claimed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    disordered: list[str] = field(default_factory=list)
    overtaken: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    duplicates: Counter[str] = field(default_factory=Counter)
    by_kill: Counter[int] = field(default_factory=Counter)

    @property
    def faults(self) -> dict[str, list[str]]:
        """The violated promises, by kind."""
        kinds = {
            "lost": self.lost,
            "delivered in the log, without an arrival": self.claimed,
            "dropped or given up against the policy": self.left_out,
            "arrived at a receiver without a subscription": self.strays,
            "first attempts out of order": self.disordered,
            "strict order: pushed before the previous one was settled": self.overtaken,
            "repeated without a reason": self.unexplained,
        }
        return {kind: found for kind, found in kinds.items() if found}

    def describe(self) -> str:
        """A text for people and failing tests."""
        lines = [
            f"{self.expected:,} deliveries expected: {self.delivered:,} taken, {self.given_up:,} refused or given up, "
            f"{self.dropped:,} dropped",
            "taken more than once: "
            + (", ".join(f"{count:,} {why}" for why, count in sorted(self.duplicates.items())) or "none"),
        ]
        for kind, found in self.faults.items():
            lines.append(f"{kind}: {len(found):,}")
            lines += [f"    {each}" for each in found[:_NAMED]]
        return "\n".join(lines)


def judge(record: Record, logged: Logged, budget_s: float) -> Findings:
    """Compare. `budget_s` is the time for which a batch waits for an answer: a later one may not count."""
    findings = Findings()
    topics = {each.mark: each.topic for each in record.accepted}
    by_receiver: dict[str, list[Arrival]] = defaultdict(list)
    for arrival in record.arrivals:
        by_receiver[arrival.receiver].append(arrival)
    for wanted in record.wanted:
        arrivals = sorted(by_receiver[wanted.receiver], key=lambda each: each.at)
        _judge_completeness(wanted, record, arrivals, logged.states, findings)
        if not wanted.pulled:
            # Messages in an answer of a killed gateway are handed out again later: then pull points keep no order.
            _judge_order(wanted, record, topics, arrivals, findings)
        if wanted.strict:
            _judge_strictness(wanted, topics, arrivals, logged.states, findings)
        _judge_repeats(wanted, arrivals, record.kills, logged.pushes, budget_s, findings)
        for arrival in arrivals:
            findings.strays += [
                f"{mark} at {wanted.receiver}"
                for mark in arrival.marks
                if topics.get(mark, "") not in wanted.topics | {""}
            ]
    return findings


def _judge_completeness(
    wanted: Wanted, record: Record, arrivals: Sequence[Arrival], logged: States, findings: Findings
) -> None:
    taken = {mark for each in arrivals if each.settled is not None and not each.refused for mark in each.marks}
    refused = {mark for each in arrivals if each.refused for mark in each.marks}
    for accepted in record.accepted:
        if accepted.topic not in wanted.topics:
            continue
        findings.expected += 1
        state = logged.get((wanted.receiver, accepted.mark), "nothing")
        what = f"{accepted.mark} for {wanted.receiver} ({state})"
        if accepted.mark in taken:
            findings.delivered += 1
        elif state == "delivered" and not wanted.pulled:
            findings.claimed.append(what)
        elif state in _DROPPED:
            findings.dropped += 1
            if not _may_be_dropped(wanted, accepted, state):
                findings.left_out.append(what)
        elif wanted.reliability == "strict" and state == "dead" and accepted.mark not in refused:
            findings.left_out.append(what)
        elif state in _ENDED and not wanted.pulled:
            findings.given_up += 1
        else:
            findings.lost.append(what)


def _may_be_dropped(wanted: Wanted, accepted: Accepted, why: str) -> bool:
    """Timely messages may be dropped for newer ones, adaptive ones for want of resources, reliable ones never."""
    timely = wanted.reliability == "timely" and not accepted.reliable
    return not wanted.pulled and wanted.reliability != "strict" and why == ("timely" if timely else "resources")


def _judge_order(
    wanted: Wanted, record: Record, topics: Mapping[str, str], arrivals: Iterable[Arrival], findings: Findings
) -> None:
    ranks = {each.mark: rank for rank, each in enumerate(record.accepted)}
    seen: set[str] = set()
    last: dict[str, str] = {}
    for arrival in arrivals:
        for mark in arrival.marks:
            if mark in seen or mark not in ranks:
                continue
            seen.add(mark)
            if arrival.attempt > 1:
                continue  # the receiver did not listen at the first attempt
            before = last.get(topics[mark])
            if before is not None and ranks[before] > ranks[mark]:
                findings.disordered.append(f"{mark} after {before} at {wanted.receiver}, at {arrival.at:.3f}")
            else:
                last[topics[mark]] = mark


def _judge_strictness(
    wanted: Wanted, topics: Mapping[str, str], arrivals: Iterable[Arrival], logged: States, findings: Findings
) -> None:
    """No new message may arrive while a tried one is not settled."""
    settled: dict[str, float] = {}
    begun: dict[str, float] = {}
    for arrival in arrivals:
        for mark in arrival.marks:
            # A settled message that arrives again is a repetition.
            if mark not in begun and mark not in settled:
                for earlier, at in list(begun.items()):
                    if settled.get(earlier, arrival.at + 1) <= arrival.at:
                        del begun[earlier]
                    elif logged.get((wanted.receiver, earlier)) in _ENDED and earlier not in settled:
                        del begun[earlier]  # given up without a recorded answer
                    else:
                        findings.overtaken.append(
                            f"{mark} at {arrival.at:.3f} while {earlier} ({at:.3f}) was open at {wanted.receiver}"
                        )
                begun[mark] = arrival.at
            if arrival.settled is not None:
                settled[mark] = min(settled.get(mark, arrival.settled), arrival.settled)


def _judge_repeats(
    wanted: Wanted,
    arrivals: Iterable[Arrival],
    kills: Sequence[Kill],
    pushes: Pushes,
    budget_s: float,
    findings: Findings,
) -> None:
    troubled = troubles(kills)
    first: dict[str, Arrival] = {}
    for arrival in arrivals:
        for mark in arrival.marks:
            known = first.get(mark)
            if known is None:
                if arrival.settled is not None:
                    first[mark] = arrival
                continue
            assert known.settled is not None
            if within(troubled, known.settled) or within(troubled, known.at):
                findings.duplicates["in flight at a kill"] += 1
                findings.by_kill[bisect_right(troubled, (known.settled, float("inf")))] += 1
            elif known.settled - known.at > budget_s / 2 or known.behaviour.startswith("drip"):
                findings.duplicates["answered late"] += 1
            else:
                findings.unexplained.append(
                    f"{mark} at {wanted.receiver}: taken at {known.at:.3f} ({known.behaviour or 'well'}), "
                    f"again at {arrival.at:.3f} (attempt {arrival.attempt}, {arrival.behaviour or 'well'}); "
                    f"rows {pushes.get((wanted.receiver, mark), ())}, kills {_kills_near(kills, known.at)}"
                )


def _kills_near(kills: Sequence[Kill], at: float) -> str:
    return ", ".join(f"{'+'.join(kill.parts)} {kill.at - at:+.1f} s" for kill in kills if abs(kill.at - at) < 90)


def troubles(kills: Sequence[Kill]) -> list[tuple[float, float]]:
    """The disjoint spans of time, in order, in which an answer may have no row."""
    spans: list[tuple[float, float]] = []
    for number, kill in enumerate(kills):
        over = kill.delivered_again
        if over is None:
            over = kills[number + 1].at if number + 1 < len(kills) else kill.at
        begin, end = kill.at - BEFORE_S, max(over, kill.at) + AFTER_S
        if spans and begin <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], end))
        else:
            spans.append((begin, end))
    return spans


def within(spans: Sequence[tuple[float, float]], at: float) -> bool:
    """Whether a time is in one of them."""
    number = bisect_right(spans, (at, float("inf"))) - 1
    return number >= 0 and spans[number][0] <= at <= spans[number][1]
