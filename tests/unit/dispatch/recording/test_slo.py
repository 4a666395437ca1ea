"""What an attempt means for the objective, and how the table counts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.hot.intake import SICK, STRICT
from arborcast.dispatch.logs import attempts
from arborcast.dispatch.recording.slo import SloAttempt, SloTable, holds, result_of
from arborcast.dispatch.tables import SLO
from arborcast.dispatch.tables.spec import open_table
from tests.support.table_rows import attempt, logged


def row(state: str = "delivered", number: int = 1, push: str = "p", ends_ms: int = 1_000, **more: Any) -> SloAttempt:
    """Accepted at 1,000 ms, with a push that took 100 ms."""
    return SloAttempt("s", number, push, state, 1_000, 1_000 + ends_ms - 100, 100.0, **more)  # type: ignore[arg-type]


def unpushed(state: str, error: str, detail: str = "") -> SloAttempt:
    return row(state, 0, "", error=error, detail=detail)


@pytest.mark.parametrize(
    ("result", "held_ms", "attempts"),
    [
        ("in_time", 0, [row(), row(ends_ms=30_000), row("parked", error="later")]),
        ("late", 0, [row(ends_ms=30_001)]),
        ("late", 999, [row(ends_ms=30_001)]),
        ("receiver", 1_000, [row(ends_ms=30_001)]),
        ("receiver", 0, [row("parked", error="connect"), row("dead", error="client-error")]),
        ("receiver", 0, [row("dropped", error="timely")]),
        ("lost", 0, [row("dead", error="internal"), row("dead", push="", error="envelope")]),
        ("lost", 0, [unpushed("expired", "lifespan")]),
        ("receiver", 5_000, [unpushed("expired", "lifespan"), unpushed("dropped", "resources")]),
        (None, 0, [row("delivered", push=""), row(number=2), row("dead", number=7, error="connect")]),
        (None, 0, [unpushed("parked", "waiting", SICK), unpushed("dropped", "timely")]),
        (None, 0, [unpushed("cancelled", "ended"), unpushed("cancelled", "erased")]),
    ],
)
def test_each_delivery_counts_once(result: str | None, held_ms: int, attempts: list[SloAttempt]) -> None:
    assert [result_of(each, 30_000, held_ms) for each in attempts] == [result] * len(attempts)


def test_a_receiver_holds_its_deliveries_by_a_fault_or_a_pause() -> None:
    faults = [row("parked", error="connect"), row("parked", number=3, error="timeout")]
    pauses = [unpushed("parked", "waiting", detail) for detail in (SICK, "the subscription is paused")]
    assert all(map(holds, [*faults, *pauses]))
    others = [unpushed("parked", "waiting", STRICT), row("parked", error="later"), row("dead", error="internal"), row()]
    assert not any(map(holds, others))


def test_an_hour_of_a_clock_ahead_does_not_end_the_holds_of_now(tmp_path: Path) -> None:
    table, week_ms = SloTable(KafkaSettings(), str(tmp_path), 1.0, lambda _: "ann"), 7 * 24 * 3_600_000
    for number, each in enumerate(
        (
            attempt("n1", "other", "delivered", week_ms),
            attempt("n2", "s", "parked", 100, error="connect"),
            attempt("n3", "s", "delivered", 2_000),
        )
    ):
        table.take(logged(attempts.encode([each])))
        table._commit(SimpleNamespace(positions={0: number}))  # type: ignore[arg-type]  # the cursor of the log
    (row,) = (each for each in SLO.read(open_table(str(tmp_path))).to_pylist() if each["subscription"] == "s")
    assert (row["receiver"], row["late"]) == (2, 0)
