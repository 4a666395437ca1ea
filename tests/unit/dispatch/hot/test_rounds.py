from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from arborcast.dispatch.hot import sink
from arborcast.dispatch.hot.recovered import RecoveredDeliveries
from arborcast.dispatch.hot.sink import SinkJob
from arborcast.dispatch.hot.stream import Rounds
from arborcast.dispatch.matching.filters import Conditions
from arborcast.topic_model.records import notifications
from arborcast.topic_model.routing import Found
from tests.support.make import notification
from tests.support.realtime_world import SETTINGS


def settled(per_second: float, rounds: Rounds, count: int = 20) -> float:
    """How long rounds take in the end, with so many deliveries a second."""
    for _ in range(count):
        rounds.took(rounds.most / per_second)
    return rounds.most / per_second


@pytest.mark.parametrize("per_second", [50, 400, 3_000, 20_000, 1_000_000])
def test_rounds_come_to_take_as_long_as_they_should(per_second: float) -> None:
    assert settled(per_second, Rounds(3.0)) == pytest.approx(3.0, rel=0.05)


def test_a_machine_that_has_become_slow_is_known_after_one_round() -> None:
    rounds = Rounds(3.0)
    settled(20_000, rounds)
    assert settled(400, rounds, 1) == pytest.approx(3.0, rel=0.05)


def test_a_round_neither_leaps_after_a_quick_one_nor_is_mostly_overhead() -> None:
    quick, slow = Rounds(3.0), Rounds(3.0)
    quick.took(0.0)
    slow.took(1e9)
    assert quick.most <= 4_000
    assert slow.most == 100


def test_a_round_takes_up_no_more_bytes_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    value = notifications.encode(notification())[1]
    monkeypatch.setattr(sink, "_MOST_BYTES", 3 * len(value))
    view = SimpleNamespace(open=lambda: SimpleNamespace(of=lambda _: Found([], [])), control=0)
    job = SinkJob(settings=SETTINGS, number=1, view=cast(Any, view))
    journal = SimpleNamespace(begin=lambda _: None, matched=lambda *_: None, write_due=lambda: True)
    worker: Any = SimpleNamespace(
        journal=journal, conditions=Conditions(), gauge=SimpleNamespace(of_task=lambda _: None)
    )
    taken, done, rest = list[int](), dict[int, int](), True
    while rest:
        task = sink.round_task(job, worker, RecoveredDeliveries(), frozenset())
        rows = sink.RoundRows([(bytearray(value), 0, offset) for offset in range(8)], done, 10_000)
        task._take(rows)
        task.write_evaluations()
        assert rows.over
        taken.append(task.intake.outcomes.report.notifications)
        done, rest = dict(rows.done), rows.rest
    assert taken == [3, 3, 2]
