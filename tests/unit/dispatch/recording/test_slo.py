"""What an attempt means for the objective."""

from __future__ import annotations

from typing import Any

import pytest

from arborcast.dispatch.hot.intake import SICK, STRICT
from arborcast.dispatch.recording.slo import SloAttempt, holds, result_of


def row(state: str = "delivered", number: int = 1, push: str = "p", ends_ms: int = 1_000, **more: Any) -> SloAttempt:
    """Accepted at 1,000 ms, with a push that took 100 ms."""
    return SloAttempt("s", number, push, state, 1_000, 1_000 + ends_ms - 100, 100.0, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attempt", "held_ms", "result"),
    [
        (row(), 0, "in_time"),
        (row(ends_ms=30_000), 0, "in_time"),
        (row(ends_ms=30_001), 0, "late"),
        (row(ends_ms=30_001), 999, "late"),
        (row(ends_ms=30_001), 1_000, "receiver"),
        (row("parked", error="later"), 0, "in_time"),
        (row("delivered", push=""), 0, None),
        (row("parked", error="connect"), 0, "receiver"),
        (row("dead", error="client-error"), 0, "receiver"),
        (row("dropped", error="timely"), 0, "receiver"),
        (row("dead", error="internal"), 0, "lost"),
        (row("dead", push="", error="envelope"), 0, "lost"),
        (row(number=2), 0, None),
        (row("dead", number=7, error="connect"), 0, None),
        (row("parked", 0, "", error="waiting", detail=SICK), 0, None),
        (row("expired", 0, "", error="lifespan"), 0, "lost"),
        (row("expired", 0, "", error="lifespan"), 5_000, "receiver"),
        (row("dropped", 0, "", error="resources"), 5_000, "receiver"),
        (row("cancelled", 0, "", error="ended"), 0, None),
        (row("cancelled", 0, "", error="erased"), 0, None),
        (row("dropped", 0, "", error="timely"), 0, None),
    ],
)
def test_each_delivery_counts_once(attempt: SloAttempt, held_ms: int, result: str | None) -> None:
    assert result_of(attempt, 30_000, held_ms) == result


@pytest.mark.parametrize(
    ("attempt", "held"),
    [
        (row("parked", error="connect"), True),
        (row("parked", number=3, error="timeout"), True),
        (row("parked", 0, "", error="waiting", detail=SICK), True),
        (row("parked", 0, "", error="waiting", detail="the subscription is paused"), True),
        (row("parked", 0, "", error="waiting", detail=STRICT), False),
        (row("parked", error="later"), False),
        (row("dead", error="internal"), False),
        (row(), False),
    ],
)
def test_a_receiver_holds_its_deliveries_by_a_fault_or_a_pause(attempt: SloAttempt, held: bool) -> None:
    assert holds(attempt) is held
