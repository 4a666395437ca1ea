"""The service level objective of deliveries: shares, error budgets and burn rates; and the attempts of a subscription.
Both are from the table `slo`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from arborcast.dispatch.settings import SloSettings
from arborcast.dispatch.tables import SLO
from arborcast.dispatch.tables.spec import open_table, queried, quoted, table_exists

DAYS = 28

_HOUR_S = 3_600

_COUNTS = ("in_time", "late", "lost", "receiver")


class Objective(msgspec.Struct, frozen=True):
    """Deliveries of 28 days against the objective. `receiver` are those that their receivers delayed or refused, which
    do not count. `share` is the part in time of the others; `budget_left` the remaining part of the error budget,
    negative if it is exceeded; None without deliveries. The burn rates are for the last hour and the last six: with 1
    the budget lasts for 28 days exactly."""

    in_time: int
    late: int
    lost: int
    receiver: int
    share: float | None
    budget_left: float | None
    burn_1h: float
    burn_6h: float


class SubscriptionObjective(NamedTuple):
    subscription: str
    owner: str
    objective: Objective


class Objectives(NamedTuple):
    """The objective of all selected deliveries, and the subscriptions that have spent most of its budget, with the
    number of the others."""

    all: Objective
    worst: tuple[SubscriptionObjective, ...]
    more: int


# Deliveries by subscription, those with the most bad ones first; and the good and bad ones of the last hour and of the
# last six: of the hour in which such a period begins, the proportion within it.
_SUMS = """
    SELECT subscription, LAST_VALUE(owner ORDER BY hour) AS owner, SUM(in_time) AS in_time, SUM(late) AS late,
        SUM(lost) AS lost, SUM(receiver) AS receiver, SUM(in_time * in_1h) AS good_1h, SUM(in_time * in_6h) AS good_6h,
        SUM((late + lost) * in_1h) AS bad_1h, SUM((late + lost) * in_6h) AS bad_6h
    FROM (
        SELECT *, GREATEST(LEAST(2 - age, 1.0), 0.0) AS in_1h, GREATEST(LEAST(7 - age, 1.0), 0.0) AS in_6h
        FROM (SELECT *, ({now} - EXTRACT(EPOCH FROM hour)) / 3600.0 AS age FROM data WHERE {conditions})
    )
    GROUP BY subscription ORDER BY late + lost DESC, subscription
"""


def objectives(
    location: str,
    slo: SloSettings,
    limit: int,
    subscription: str = "",
    owner: str | None = None,
    now: float | None = None,
) -> Objectives:
    """Of one subscription, of the subscriptions of one owner, or of all. Raises DeltaError."""
    at = datetime.now(UTC) if now is None else datetime.fromtimestamp(now, UTC)
    since = at - timedelta(days=DAYS)
    # Without later days, of a clock that was ahead.
    conditions = [f"day BETWEEN '{since.date()}' AND '{at.date()}'", f"hour > '{since.isoformat()}'"]
    if subscription:
        conditions.append(f"subscription = {quoted(subscription)}")
    if owner is not None:
        conditions.append(f"owner = {quoted(owner)}")
    if not table_exists(location):
        return Objectives(_objective(Counter(), slo.target), (), 0)
    sql = _SUMS.format(now=int(at.timestamp()), conditions=" AND ".join(conditions))
    found = pa.table(queried(open_table(location), sql))
    worst = tuple(
        SubscriptionObjective(row["subscription"], row["owner"], _objective(row, slo.target))
        for row in found.slice(0, limit).to_pylist()
    )
    total = {each: pc.sum(found[each]).as_py() or 0 for each in found.column_names[2:]}
    return Objectives(_objective(total, slo.target), worst, found.num_rows - len(worst))


class HourAttempts(NamedTuple):
    """The attempts of a subscription in the hour that begins at `at_ms`."""

    at_ms: int
    delivered: int = 0
    failed: int = 0

    @property
    def attempts(self) -> int:
        return self.delivered + self.failed


def attempts_by_hour(location: str, subscription: str, now: float | None = None) -> tuple[HourAttempts, ...]:
    """The attempts of the current hour and the hours before it, a day in all, oldest first. Raises DeltaError."""
    current = int(time.time() if now is None else now) // _HOUR_S * _HOUR_S
    begins = range(current - 23 * _HOUR_S, current + 1, _HOUR_S)
    found = {each * 1000: HourAttempts(each * 1000) for each in begins}
    if table_exists(location):
        first, last = (datetime.fromtimestamp(each, UTC) for each in (begins[0], begins[-1]))
        where = (ds.field("hour") >= first) & (ds.field("hour") <= last) & (ds.field("subscription") == subscription)
        columns = ["hour", "delivered", "failed"]
        for row in SLO.read(open_table(location), columns, where, f"day >= '{first.date()}'").to_pylist():
            at_ms = int(row["hour"].timestamp()) * 1000
            found[at_ms] = HourAttempts(at_ms, row["delivered"], row["failed"])
    return tuple(found.values())


def _objective(sums: Mapping[str, float], target: float) -> Objective:
    in_time, late, lost, receiver = (int(sums[each]) for each in _COUNTS)
    total = in_time + late + lost
    return Objective(
        in_time=in_time,
        late=late,
        lost=lost,
        receiver=receiver,
        share=in_time / total if total else None,
        budget_left=1 - burn_rate(in_time, late + lost, target) if total else None,
        burn_1h=burn_rate(sums["good_1h"], sums["bad_1h"], target),
        burn_6h=burn_rate(sums["good_6h"], sums["bad_6h"], target),
    )


def burn_rate(good: float, bad: float, target: float) -> float:
    """The share of bad deliveries, as a multiple of the share that the objective allows."""
    return bad / (good + bad) / (1 - target) if good + bad else 0.0
