"""The outside record of a storm against the engine's own books: what is lost, disordered, or twice without a reason.

Pure. The books are only believed where they speak against the engine: that a message was given up has to be written
there, that one was taken has to have been seen outside, too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.storms.record import Accepted, Arrival, Kill, Record, Wanted

Books = Mapping[tuple[str, str], str]
"""The last state of a delivery, by (receiver, mark); of what was dropped, why."""

# An answer of the last tenth of a second before a kill may have no row; the rest is for a machine that reads it late.
BEFORE_S = 1.0

# After the first delivery others may still be under way.
AFTER_S = 3.0

_DROPPED = frozenset({"timely", "resources"})
_ENDED = frozenset({"dead", "expired", "cancelled"}) | _DROPPED
_NAMED = 20


@dataclass
class Findings:
    """What was found. `lost` to `unexplained` must be empty; they name (receiver, mark), or say more. `by_kill` are the
    duplicates of each time of trouble."""

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
        """What must not be, by kind; nothing when all is well."""
        kinds = {
            "lost": self.lost,
            "said to be delivered, never seen": self.claimed,
            "dropped, or given up unasked, where that may not be": self.left_out,
            "arrived where it is not wanted": self.strays,
            "first attempts out of order": self.disordered,
            "pushed before the one before it was settled": self.overtaken,
            "twice without a reason": self.unexplained,
        }
        return {kind: found for kind, found in kinds.items() if found}

    def describe(self) -> str:
        """For a person, and for a failing test."""
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


def judge(record: Record, books: Books, budget_s: float) -> Findings:
    """Compare. `budget_s` is how long the engine waits for an answer in a batch: one that takes longer may be taken for
    none."""
    findings = Findings()
    topics = {each.mark: each.topic for each in record.accepted}
    by_receiver: dict[str, list[Arrival]] = defaultdict(list)
    for arrival in record.arrivals:
        by_receiver[arrival.receiver].append(arrival)
    for wanted in record.wanted:
        arrivals = sorted(by_receiver[wanted.receiver], key=lambda each: each.at)
        _judge_completeness(wanted, record, arrivals, books, findings)
        if not wanted.pulled:
            # Messages that a gateway handed out when it was killed come back later: pull points promise no order then.
            _judge_order(wanted, record, topics, arrivals, findings)
        if wanted.strict:
            _judge_strictness(wanted, topics, arrivals, books, findings)
        _judge_repeats(wanted, arrivals, record.kills, budget_s, findings)
        for arrival in arrivals:
            findings.strays += [
                f"{mark} at {wanted.receiver}"
                for mark in arrival.marks
                if topics.get(mark, "") not in wanted.topics | {""}
            ]
    return findings


def _judge_completeness(
    wanted: Wanted, record: Record, arrivals: Sequence[Arrival], books: Books, findings: Findings
) -> None:
    taken = {mark for each in arrivals if each.settled is not None and not each.refused for mark in each.marks}
    refused = {mark for each in arrivals if each.refused for mark in each.marks}
    for accepted in record.accepted:
        if accepted.topic not in wanted.topics:
            continue
        findings.expected += 1
        state = books.get((wanted.receiver, accepted.mark), "nothing")
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
    """What is timely for the sake of time, what waits when too much does: neither of what is strict."""
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
                continue  # its first attempt came when nobody was listening
            before = last.get(topics[mark])
            if before is not None and ranks[before] > ranks[mark]:
                findings.disordered.append(f"{mark} after {before} at {wanted.receiver}, at {arrival.at:.3f}")
            else:
                last[topics[mark]] = mark


def _judge_strictness(
    wanted: Wanted, topics: Mapping[str, str], arrivals: Iterable[Arrival], books: Books, findings: Findings
) -> None:
    """Nothing new may arrive while something that was tried is open."""
    settled: dict[str, float] = {}
    begun: dict[str, float] = {}
    for arrival in arrivals:
        for mark in arrival.marks:
            # What was settled and comes again is a repeat, and judged as such.
            if mark not in begun and mark not in settled:
                for earlier, at in list(begun.items()):
                    if settled.get(earlier, arrival.at + 1) <= arrival.at:
                        del begun[earlier]
                    elif books.get((wanted.receiver, earlier)) in _ENDED and earlier not in settled:
                        del begun[earlier]  # given up without a last answer that we saw
                    else:
                        findings.overtaken.append(
                            f"{mark} at {arrival.at:.3f} while {earlier} ({at:.3f}) was open at {wanted.receiver}"
                        )
                begun[mark] = arrival.at
            if arrival.settled is not None:
                settled[mark] = min(settled.get(mark, arrival.settled), arrival.settled)


def _judge_repeats(
    wanted: Wanted, arrivals: Iterable[Arrival], kills: Sequence[Kill], budget_s: float, findings: Findings
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
                findings.duplicates["under way at a kill"] += 1
                findings.by_kill[bisect_right(troubled, (known.settled, float("inf")))] += 1
            elif known.settled - known.at > budget_s / 2 or known.behaviour.startswith("drip"):
                findings.duplicates["answered late"] += 1
            else:
                findings.unexplained.append(
                    f"{mark} at {wanted.receiver}: taken at {known.at:.3f} ({known.behaviour or 'well'}), "
                    f"again at {arrival.at:.3f} (attempt {arrival.attempt}, {arrival.behaviour or 'well'})"
                )


def troubles(kills: Sequence[Kill]) -> list[tuple[float, float]]:
    """The spans of time, in order and apart, in which an answer may not have been written down."""
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
    """Whether a moment lies in one of them."""
    number = bisect_right(spans, (at, float("inf"))) - 1
    return number >= 0 and spans[number][0] <= at <= spans[number][1]
