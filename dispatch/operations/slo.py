"""The service level objective of deliveries: shares, error budgets and burn rates; and the attempts of a subscription.
Both are from the table `slo`."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from arborcast.dispatch.settings import SloSettings
from arborcast.dispatch.tables import SLO
from arborcast.dispatch.tables.spec import open_table, table_exists

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
    where = ds.field("hour") > since
    if subscription:
        where &= ds.field("subscription") == subscription
    if owner is not None:
        where &= ds.field("owner") == owner
    columns = ["hour", "subscription", "owner", *_COUNTS]
    days = [_by_subscription(_weighed(SLO.arrow([]).select(columns), at))]
    if table_exists(location):
        table = open_table(location)
        # One day in memory: the rows of a month are thirty million with fifty thousand active subscriptions.
        for number in range(DAYS + 1):
            of_day = f"day = '{(since + timedelta(days=number)).date()}'"
            days.append(_by_subscription(_weighed(SLO.read(table, columns, where, of_day), at)))
    names = _by_subscription(pa.concat_tables(days))
    sums = {each: names[each] for each in names.column_names if each not in ("subscription", "owner")}
    bad = pc.add(sums["late"], sums["lost"])
    order = pc.sort_indices(pa.table({"bad": bad}), [("bad", "descending")])[:limit]
    worst = tuple(
        SubscriptionObjective(
            row["subscription"],
            row["owner"],
            _objective({each: row[each] for each in sums}, slo.target),
        )
        for row in names.take(order).to_pylist()
    )
    total = {each: pc.sum(column).as_py() or 0 for each, column in sums.items()}
    return Objectives(_objective(total, slo.target), worst, names.num_rows - len(worst))


class HourAttempts(NamedTuple):
    """The attempts of a subscription in the hour that begins at `at_ms`; None where they were not counted."""

    at_ms: int
    delivered: int | None = 0
    failed: int | None = 0

    @property
    def attempts(self) -> int:
        return (self.delivered or 0) + (self.failed or 0)


def attempts_by_hour(location: str, subscription: str, now: float | None = None) -> tuple[HourAttempts, ...]:
    """The attempts of the current hour and the hours before it, a day in all, oldest first. Raises DeltaError."""
    current = int(time.time() if now is None else now) // _HOUR_S * _HOUR_S
    begins = range(current - 23 * _HOUR_S, current + 1, _HOUR_S)
    found = {each * 1000: HourAttempts(each * 1000) for each in begins}
    if table_exists(location):
        first, last = (datetime.fromtimestamp(each, UTC) for each in (begins[0], begins[-1]))
        where = (ds.field("hour") >= first) & (ds.field("hour") <= last) & (ds.field("subscription") == subscription)
        table = open_table(location)
        # A table of an earlier version lacks the columns until the job opens it.
        known = {each.name for each in table.schema().fields}
        columns = [each for each in ("hour", "delivered", "failed") if each in known]
        for row in SLO.read(table, columns, where, f"day >= '{first.date()}'").to_pylist():
            at_ms = int(row["hour"].timestamp()) * 1000
            found[at_ms] = HourAttempts(at_ms, row.get("delivered"), row.get("failed"))
    return tuple(found.values())


def _by_subscription(rows: pa.Table) -> pa.Table:
    """The sums of each subscription, with its last owner."""
    sums = [each for each in rows.column_names if each not in ("hour", "subscription", "owner")]
    found = rows.group_by("subscription", use_threads=False).aggregate(
        [("owner", "last"), *((each, "sum") for each in sums)]
    )
    return found.rename_columns([each.removesuffix("_last").removesuffix("_sum") for each in found.column_names])


def _weighed(rows: pa.Table, at: datetime) -> pa.Table:
    """With the good and bad deliveries of the last hour and of the last six: of the hour in which the period begins,
    the proportion within it."""
    ages = pc.subtract(int(at.timestamp()), pc.divide(rows["hour"].cast(pa.int64()), 1_000_000))
    bad = pc.add(rows["late"], rows["lost"])
    for hours in (1, 6):
        begun = pc.min_element_wise(
            pc.divide(pc.subtract((hours + 1) * _HOUR_S, ages).cast(pa.float64()), _HOUR_S), 1.0
        )
        weight = pc.max_element_wise(begun, 0.0)
        rows = rows.append_column(f"bad_{hours}h", pc.multiply(bad.cast(pa.float64()), weight))
        rows = rows.append_column(f"good_{hours}h", pc.multiply(rows["in_time"].cast(pa.float64()), weight))
    return rows


def _objective(sums: dict[str, float], target: float) -> Objective:
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
