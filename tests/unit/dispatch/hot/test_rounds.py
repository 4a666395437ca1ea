from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from arborcast.dispatch.hot import sink
from arborcast.dispatch.hot.intake import Exclusions
from arborcast.dispatch.hot.recovered import RecoveredDeliveries
from arborcast.dispatch.hot.stream import Rounds
from arborcast.dispatch.matching.filters import Conditions
from arborcast.dispatch.redelivery.partition_reports import PartitionReport
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.routing import Found
from arborcast.topic_model.topics import TopicPath
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
    rounds.took(rounds.most / 400)
    assert rounds.most / 400 == pytest.approx(3.0, rel=0.05)


def test_one_quick_round_does_not_make_the_next_one_a_leap() -> None:
    rounds = Rounds(3.0)
    rounds.took(0.0)
    assert rounds.most <= 4_000


def test_a_round_is_never_so_small_that_it_is_mostly_overhead() -> None:
    rounds = Rounds(3.0)
    rounds.took(1e9)
    assert rounds.most == 100


def test_a_round_takes_up_no_more_bytes_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    value = notifications.encode(Notification("n", TopicPath("a"), b"<x/>", 1))[1]
    monkeypatch.setattr(sink, "_MOST_BYTES", 3 * len(value))
    view = SimpleNamespace(open=lambda: SimpleNamespace(of=lambda _: Found([], [])), control=0)
    job = SimpleNamespace(
        settings=SETTINGS,
        view=view,
        number=1,
        exclusions=Exclusions(),
        recovered=None,
        passed={},
        done={},
        most=10_000,
    )
    journal = SimpleNamespace(begin=lambda _: None, matched=lambda *_: None, write_due=lambda: True)
    worker = SimpleNamespace(journal=journal, conditions=Conditions(), gauge=SimpleNamespace(of_task=lambda _: None))
    taken: list[PartitionReport] = []
    rest = True
    while rest:
        task = sink.round_task(cast(Any, job), cast(Any, worker), RecoveredDeliveries(), frozenset())
        rows = sink.RoundRows([(bytearray(value), 0, offset) for offset in range(8)], job.done, job.most)
        task._take(rows)
        task.write_evaluations()
        assert rows.over
        taken.append(task.intake.outcomes.report)
        job.done, rest = rows.done, rows.rest
    assert [each.notifications for each in taken] == [3, 3, 2]
