"""Shares, budgets and burn rates from rows of the table; the result of an attempt for the objective."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from arborcast.dispatch.hot.intake import SICK, STRICT
from arborcast.dispatch.operations.slo import HourAttempts, Objective, attempts_by_hour, burn_rate, objectives
from arborcast.dispatch.recording.slo import SloAttempt, holds, result_of
from arborcast.dispatch.settings import SloSettings
from arborcast.dispatch.tables import SLO
from arborcast.dispatch.tables.delta_table import DeltaTableWriter
from tests.support.table_rows import neutral

NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


def row(ago: float, subscription: str = "s1", owner: str = "", **counts: int) -> dict[str, object]:
    """A row for the hour `ago` hours before the present one."""
    hour = NOW.replace(minute=0) - timedelta(hours=ago)
    return neutral(SLO, day=hour.date(), hour=hour, subscription=subscription, owner=owner, **counts)


def table(folder: Path, *rows: dict[str, object]) -> str:
    location = str(folder / "slo")
    DeltaTableWriter(SLO, location).extend(SLO.arrow(rows), {"attempts-0": 1})
    return location


def test_objectives_of_all_of_owners_and_of_subscriptions(tmp_path: Path) -> None:
    location = table(
        tmp_path,
        row(0, "s1", "ann", in_time=90, late=8, lost=2, receiver=50),
        row(100, "s1", "ann", in_time=900),
        row(100, "s2", "bob", in_time=1_000, receiver=7),
        row(28 * 24 + 1, "s1", "ann", late=999),
        row(-7 * 24, "s1", "ann", late=999),  # of a clock that was ahead
    )
    slo = SloSettings(target=0.99)

    found = objectives(location, slo, 1, now=NOW.timestamp())
    assert (found.all.in_time, found.all.late, found.all.lost, found.all.receiver) == (1_990, 8, 2, 57)
    assert found.all.share == pytest.approx(0.995)
    assert found.all.budget_left == pytest.approx(0.5)
    assert found.all.burn_1h == pytest.approx(found.all.burn_6h) == pytest.approx(10.0)
    assert ([each.subscription for each in found.worst], found.more) == (["s1"], 1)
    assert found.worst[0].objective.budget_left == pytest.approx(0.0)

    assert objectives(location, slo, 10, owner="bob", now=NOW.timestamp()).all.share == 1.0
    assert objectives(location, slo, 10, subscription="s2", now=NOW.timestamp()).all.in_time == 1_000
    nothing = Objective(0, 0, 0, 0, None, None, 0.0, 0.0)
    assert objectives(location, slo, 10, owner="eve", now=NOW.timestamp()) == (nothing, (), 0)
    assert objectives(str(tmp_path / "none"), slo, 10) == (nothing, (), 0)


def test_the_oldest_hour_counts_in_part(tmp_path: Path) -> None:
    """At 12:30 half of the hour from 11:00 is within one hour."""
    location = table(tmp_path, row(0, in_time=50), row(1, late=100), row(2, late=100))
    found = objectives(location, SloSettings(target=0.9), 1, now=NOW.timestamp()).all
    assert found.burn_1h == pytest.approx(5.0), "50 late of 100"
    assert found.burn_6h == pytest.approx(8.0), "200 late of 250"
    assert burn_rate(999, 1, 0.999) == pytest.approx(1.0), "exactly the budget"
    assert burn_rate(0, 0, 0.999) == 0.0


def test_the_attempts_of_a_subscription_by_hour_over_a_day(tmp_path: Path) -> None:
    hours = [int((NOW.replace(minute=0) - timedelta(hours=ago)).timestamp()) * 1000 for ago in range(23, -1, -1)]
    assert attempts_by_hour(str(tmp_path / "slo"), "s1", NOW.timestamp()) == tuple(map(HourAttempts, hours))
    counted = [("s1", 0, 5, 1), ("s1", 23, 7, 2), ("s1", 24, 99, 99), ("s2", 1, 99, 99)]
    rows = [row(ago, name, delivered=delivered, failed=failed) for name, ago, delivered, failed in counted]
    found = attempts_by_hour(table(tmp_path, *rows), "s1", NOW.timestamp())
    assert len(found) == 24
    assert (found[0][1:], found[23][1:]) == ((7, 2), (5, 1))
    assert sum(each.attempts for each in found) == 15


def tried(state: str = "delivered", number: int = 1, push: str = "p", ends_ms: int = 1_000, **more: Any) -> SloAttempt:
    """Accepted at 1,000 ms, with a push of 100 ms."""
    return SloAttempt("s", number, push, state, 1_000, 1_000 + ends_ms - 100, 100.0, **more)  # type: ignore[arg-type]


def unpushed(state: str, error: str, detail: str = "") -> SloAttempt:
    return tried(state, 0, "", error=error, detail=detail)


@pytest.mark.parametrize(
    ("result", "held_ms", "attempts"),
    [
        ("in_time", 0, [tried(), tried(ends_ms=30_000), tried("parked", error="later")]),
        ("late", 0, [tried(ends_ms=30_001)]),
        ("late", 999, [tried(ends_ms=30_001)]),
        ("receiver", 1_000, [tried(ends_ms=30_001)]),
        ("receiver", 0, [tried("parked", error="connect"), tried("dead", error="client-error")]),
        ("receiver", 0, [tried("dropped", error="timely")]),
        ("lost", 0, [tried("dead", error="internal"), tried("dead", push="", error="envelope")]),
        ("lost", 0, [unpushed("expired", "lifespan")]),
        ("receiver", 5_000, [unpushed("expired", "lifespan"), unpushed("dropped", "resources")]),
        (None, 0, [tried("delivered", push=""), tried(number=2), tried("dead", number=7, error="connect")]),
        (None, 0, [unpushed("parked", "waiting", SICK), unpushed("dropped", "timely")]),
        (None, 0, [unpushed("cancelled", "ended"), unpushed("cancelled", "erased")]),
    ],
)
def test_each_delivery_counts_once(result: str | None, held_ms: int, attempts: list[SloAttempt]) -> None:
    assert [result_of(each, 30_000, held_ms) for each in attempts] == [result] * len(attempts)


def test_a_receiver_delays_its_deliveries_by_a_fault_or_a_pause() -> None:
    faults = [tried("parked", error="connect"), tried("parked", number=3, error="timeout")]
    pauses = [unpushed("parked", "waiting", detail) for detail in (SICK, "the subscription is paused")]
    assert all(map(holds, [*faults, *pauses]))
    others = [
        unpushed("parked", "waiting", STRICT),
        tried("parked", error="later"),
        tried("dead", error="internal"),
        tried(),
    ]
    assert not any(map(holds, others))


def test_a_redriven_delivery_is_not_late() -> None:
    """Ten thousand letters of a lane take minutes."""
    redriven = tried("parked", 0, "", ends_ms=100, error="redriven")
    assert redriven.started_ms == redriven.accepted_ms, "it is accepted at its redrive"
    assert result_of(redriven, 30_000, 0) is None
    assert holds(redriven)
    assert result_of(tried(ends_ms=500_000), 30_000, redriven.started_ms) == "receiver"
