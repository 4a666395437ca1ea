"""Matches against deliveries, and the places of the `notifications` log against evaluations. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arborcast.core.eventlog.scan import OffsetRange
from arborcast.dispatch.operations.audit.ledger import (
    CANCELLED,
    DEAD,
    DELIVERED,
    DROPPED,
    EXPIRED,
    LAPSED,
    PENDING,
    PURGED,
    DeliveryRows,
    Evaluations,
    Ledger,
    Numbers,
)
from arborcast.dispatch.operations.audit.report import MAX_PROBLEMS, Kind, Problem, Report, Tally
from arborcast.topic_model.records.notifications import is_replay
from arborcast.topic_model.topics import is_system


@dataclass
class Balance:
    """The report so far, with the evaluations and deliveries of the period for the deeper examination. `gaps` are
    unevaluated offsets before evaluated ones of their partitions."""

    report: Report
    evaluations: Evaluations
    deliveries: DeliveryRows
    gaps: list[tuple[int, int]]
    gap_count: int


def balance(
    ledger: Ledger, since_ms: int, until_ms: int, stretches: Mapping[int, OffsetRange], limit: int = MAX_PROBLEMS
) -> Balance:
    """Compare the two sides of the ledger, for notifications accepted in the interval.

    A notification may have several places: a topic's current message is sent again, under its old id, to later
    subscribers. A recipient of both has one delivery with two rows of batches. A publication of a trigger that is
    repeated after a crash has the same recipients: it needs no more deliveries than the maximum of its places.
    """
    evaluations, deliveries = ledger.evaluations(), ledger.deliveries()
    report = Report(since_ms, until_ms, rows=ledger.rows)
    inside = (evaluations.accepted_ms >= since_ms) & (evaluations.accepted_ms < until_ms)
    keys, first, by_key = np.unique(evaluations.notification[inside], return_index=True, return_inverse=True)
    least = np.bincount(by_key, evaluations.least[inside]).astype(np.int64)
    most = np.bincount(by_key, evaluations.most[inside]).astype(np.int64)
    places = np.bincount(by_key)

    belongs, owner = _among(keys, deliveries.notification)
    orphaned = ~np.isin(deliveries.notification, evaluations.notification)
    orphaned &= (deliveries.accepted_ms >= since_ms) & (deliveries.accepted_ms < until_ms) & ~deliveries.redriven
    theirs = deliveries[belongs]
    found = np.bincount(owner, minlength=len(keys))
    repeated = np.bincount(owner, np.maximum(theirs.by_batches - 1, 0), len(keys)).astype(np.int64)
    least = np.where(places > 1, least - repeated, least)
    once = np.zeros(len(keys), np.int64)
    np.maximum.at(once, by_key, evaluations.least[inside])
    least = np.where(evaluations.caused[inside][first] > 0, once, least)

    report.notifications = len(keys)
    # If the evaluations allow a range, the number of found deliveries counts.
    report.matches = int(np.clip(found, least, most).sum())
    report.duplicates = int((theirs.delivered > 1).sum())
    _tally(report, ledger, theirs)
    rows_of_keys = np.flatnonzero(inside)[first]
    _count_kinds(report, ledger, evaluations, rows_of_keys)

    def name(kinds: list[tuple[int, Kind]]) -> list[Problem]:
        return [
            problem(kind, ledger, evaluations, int(rows_of_keys[at]), int(least[at]), int(found[at]))
            for at, kind in kinds
        ]

    short = np.flatnonzero(found < least)
    newest = evaluations.batch[rows_of_keys[short]] == ledger.newest_batch
    kinds: list[Kind] = ["unfinished" if each else "missing" for each in newest[:limit]]
    report.add_problems(name(list(zip(short[:limit].tolist(), kinds, strict=True))), len(short), limit)
    over = np.flatnonzero(found > most)
    report.surplus = len(over)
    report.add_problems(name([(int(at), "surplus") for at in over[:limit]]), len(over), limit)
    _blame_orphans(report, deliveries[orphaned], limit)
    gaps, gap_count = _gaps(report, evaluations, stretches, limit)
    return Balance(report, evaluations[inside], theirs, gaps, gap_count)


def _count_kinds(report: Report, ledger: Ledger, evaluations: Evaluations, rows: Numbers) -> None:
    """Count the notifications that no publisher has sent."""
    own = [number for topic, number in ledger.topics.items() if is_system(topic)]
    caused = evaluations.caused[rows] > 0
    report.triggered = int(caused.sum())
    system = np.isin(evaluations.topic[rows], own) & ~caused
    report.system_notices = int(system.sum())
    ids = (ledger.ids[at] for at in evaluations.index[rows[~system]].tolist())
    report.replays = sum(is_replay(each) for each in ids)


def _among(keys: Numbers, values: Numbers) -> tuple[npt.NDArray[np.bool_], Numbers]:
    """A mask of the values that are among the sorted keys, and their positions."""
    if not len(keys):
        return np.zeros(len(values), np.bool_), np.zeros(0, np.int64)
    at = np.minimum(np.searchsorted(keys, values), len(keys) - 1)
    belongs = keys[at] == values
    return belongs, at[belongs]


def _tally(report: Report, ledger: Ledger, deliveries: DeliveryRows) -> None:
    kinds = DROPPED + 1
    names = list(ledger.numbers)
    counts = np.bincount(deliveries.subscription * np.int64(kinds) + deliveries.state, minlength=len(names) * kinds)
    counts = counts.reshape(len(names), kinds)
    for number in np.flatnonzero(counts.sum(axis=1)).tolist():
        report.subscriptions[names[number]] = _tallied(counts[number])
    report.totals = _tallied(counts.sum(axis=0))


def _tallied(counts: npt.NDArray[np.int64]) -> Tally:
    return Tally(
        delivered=int(counts[DELIVERED]),
        dead=int(counts[DEAD] + counts[PURGED]),
        expired=int(counts[EXPIRED] + counts[LAPSED]),
        cancelled=int(counts[CANCELLED]),
        dropped=int(counts[DROPPED]),
        pending=int(counts[PENDING]),
    )


def problem(
    kind: Kind, ledger: Ledger, evaluations: Evaluations, at: int, matched: int = 0, found: int = 0, who: str = ""
) -> Problem:
    """The problem with the notification of one of the evaluations; `who` is the subscription, if known."""
    return Problem(
        kind,
        ledger.ids[int(evaluations.index[at])],
        who,
        matched=matched,
        found=found,
        topic=list(ledger.topics)[evaluations.topic[at]],
        accepted_ms=int(evaluations.accepted_ms[at]),
        partition=int(evaluations.partition[at]),
        offset=int(evaluations.offset[at]),
    )


def _blame_orphans(report: Report, orphans: DeliveryRows, limit: int) -> None:
    """Report deliveries of notifications without an evaluation. Instead of ids they have keys; see `name_unmatched`."""
    keys, first, counts = np.unique(orphans.notification, return_index=True, return_counts=True)
    problems = [
        Problem("unmatched", str(keys[at]), found=int(counts[at]), accepted_ms=int(orphans.accepted_ms[first[at]]))
        for at in range(min(limit, len(keys)))
    ]
    report.add_problems(problems, len(keys), limit)


def _gaps(
    report: Report, evaluations: Evaluations, stretches: Mapping[int, OffsetRange], limit: int
) -> tuple[list[tuple[int, int]], int]:
    """Report unevaluated offsets. The log has no gaps (it is not compacted, and has no transactions), so missing
    evaluations are visible without reading it."""
    gaps: list[tuple[int, int]] = []
    count = 0
    for partition, (first, end) in stretches.items():
        known = evaluations.offset[evaluations.partition == partition]
        last = int(known.max()) if len(known) else -1
        report.waiting += max(0, end - max(first, last + 1))
        evaluated = np.unique(known[(known >= first) & (known < end)])
        missing = max(0, min(end, last + 1) - first) - len(evaluated)
        if missing:
            count += missing
            expected = np.arange(first, min(end, last + 1))
            found = np.setdiff1d(expected, evaluated, assume_unique=True)
            gaps += [(partition, int(offset)) for offset in found[: limit - len(gaps)]]
    return gaps, count
