"""Later results of pushes, until their deliveries are read.

A result is written by the gateway, its deliveries by a worker, so the result may be read first. It is stored beside the
deliveries until all of them are read. The first result of a push counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

from arborcast.dispatch.delivery.outcomes import Outcome
from arborcast.dispatch.logs.attempts import ErrorClass
from arborcast.dispatch.logs.parked import UNANSWERED_PUSH
from arborcast.dispatch.redelivery.parked_store import ParkedStore, WaitingDelivery
from arborcast.topic_model.records import results
from arborcast.topic_model.records.results import Result

# A result without deliveries at this age after its deadline belongs to a push that a crash has repeated.
_KEPT_MS = 900_000

_SWEEP_MS = 60_000

NO_RESULT = Outcome("no-result", "its receiver accepted it and did not report the result in time")


def outcome_of(result: Result) -> Outcome:
    """The outcome of a result for the deliveries of its push."""
    took_s = max(result.at_ms - result.promise.started_ms, 0) / 1000
    if result.promise.push.startswith(UNANSWERED_PUSH):
        detail = f"answered after {took_s:.1f} s" if result.state == "delivered" else result.text
        return Outcome(cast(ErrorClass, result.error), detail, result.status, result.state == "refused")
    suffix = f": {result.text}" if result.text else ""
    if result.state == "delivered":
        return Outcome("", f"its receiver reported this after {took_s:.1f} s{suffix}")
    what = "refuses it" if result.state == "refused" else "failed"
    detail = f"its receiver reported after {took_s:.1f} s that it {what}{suffix}"
    return Outcome("reported", detail, hopeless=result.state == "refused")


class AwaitedResults:
    """Used by one thread."""

    def __init__(self, store: ParkedStore) -> None:
        self._store = store
        store.query(
            "CREATE TABLE IF NOT EXISTS report (lane TEXT NOT NULL, push TEXT NOT NULL, until_ms INTEGER NOT NULL,"
            " value BLOB NOT NULL, PRIMARY KEY (lane, push)) WITHOUT ROWID"
        )
        self._swept_ms = 0
        # By lane, the pushes with a result and waiting deliveries.
        self._ready: dict[str, dict[str, None]] = {}
        self._add_ready(
            store.query(
                "SELECT DISTINCT report.lane, push FROM report JOIN waiting"
                " ON waiting.lane = report.lane AND awaits = push AND awaits != ''"
            )
        )

    def add(self, result: Result, now_ms: int) -> bool:
        """Store a result; returns whether deliveries wait for it."""
        lane, push, _, until_ms, _ = result.promise
        if abs(now_ms - self._swept_ms) > _SWEEP_MS:  # the clock may have been put back
            self._swept_ms = now_ms
            self._store.query("DELETE FROM report WHERE until_ms < ?", now_ms - _KEPT_MS)
        if until_ms < now_ms - _KEPT_MS:
            return False
        _, value = results.encode(result)
        self._store.query("INSERT OR IGNORE INTO report VALUES (?, ?, ?, ?)", lane, push, until_ms, value)
        awaited = bool(self._store.awaiting(lane, push))
        if awaited:
            self._add_ready([(lane, push)])
        return awaited

    def ready_lanes(self) -> Iterable[str]:
        """The lanes with deliveries whose results are known."""
        promised, self._store.promised = self._store.promised, []
        for lane, push in promised:
            if self._store.query("SELECT 1 FROM report WHERE lane = ? AND push = ?", lane, push):
                self._add_ready([(lane, push)])
        return list(self._ready)

    def take(self, lane: str) -> Iterator[tuple[WaitingDelivery, Result]]:
        """The deliveries of a lane with known results, with these, push by push."""
        for push in self._ready.pop(lane, ()):
            for (value,) in self._store.query("SELECT value FROM report WHERE lane = ? AND push = ?", lane, push):
                result = results.decode(value)
                waiting = self._store.awaiting(lane, push)
                yield from [(each, result) for each in waiting]
                if len(waiting) >= result.promise.messages:
                    self._store.query("DELETE FROM report WHERE lane = ? AND push = ?", lane, push)

    def _add_ready(self, found: Iterable[tuple[str, ...]]) -> None:
        for lane, push in found:
            self._ready.setdefault(lane, {})[push] = None
