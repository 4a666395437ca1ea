"""A partition of a batch whose pushes a test makes up."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from arborcast.core.eventlog.client import Producer
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.hot import sink
from arborcast.dispatch.hot.batch_outcomes import waits
from arborcast.dispatch.hot.pump import PumpRun
from arborcast.dispatch.hot.sink import SinkJob
from arborcast.dispatch.logs.parked import ParkingLog
from arborcast.dispatch.matching.filters import Conditions
from arborcast.topic_model.records import notifications
from arborcast.topic_model.routing import Found
from tests.support.fake_journal import FakeJournal
from tests.support.hot import received
from tests.support.make import notification, subscription
from tests.support.realtime_world import SETTINGS


class Unacknowledged:
    """Kafka has nothing yet."""

    def partitions_for(self, topic: str) -> set[int]:
        return {0}

    def send(self, topic: str, **record: object) -> object:
        return SimpleNamespace(add_callback=lambda call: None, add_errback=lambda call: None)


def test_what_joins_its_lane_late_does_not_overtake_what_was_parked_in_the_same_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = ParkingLog(KafkaSettings(), lambda _: cast(Producer, Unacknowledged()))
    rows = FakeJournal()
    journal = SimpleNamespace(
        parked=log,
        park=lambda delivery, notification, tries, row, in_turn: log.park(delivery, notification, tries, in_turn),
        write=partial(FakeJournal.write, rows),
        begin=lambda _: None,
        matched=lambda *_: None,
        write_due=lambda: True,
        catch_up=lambda: None,
        due_s=lambda: 0.0,
    )
    monkeypatch.setattr(rows, "park", journal.park)
    many = [subscription(f"s{number}") for number in range(100)]
    overtaken: list[str] = []

    def run(run: PumpRun, between: Callable[[], None]) -> None:
        lanes, outcomes, fill = run.lanes, run.outcomes, run.fill
        first = received("first", batch=0, accepted_ms=1 << 50)
        outcomes.write_unpushed(many[7], (first,), waits("the pushes before it failed"))
        fill(100)
        overtaken.extend(each.id for each, _ in lanes.waiting())

    worker = SimpleNamespace(
        journal=journal,
        conditions=Conditions(),
        pump=SimpleNamespace(run=run, turn=lambda run: 0.0),
        gauge=SimpleNamespace(of_task=lambda _: None),
        settled=lambda: None,
        rest=lambda: None,
    )
    monkeypatch.setattr(sink, "worker_for", lambda *_: worker)
    view = SimpleNamespace(open=lambda: SimpleNamespace(of=lambda _: Found(many, [])), control=0)
    value = notifications.encode(notification("second", "a", accepted_ms=1 << 50))[1]
    accumulator = cast(Any, SimpleNamespace(add=lambda reports: None))

    job = SinkJob(settings=SETTINGS, number=1, view=cast(Any, view))
    sink.push_partition(job, accumulator, [(bytearray(value), 0, 1)])

    assert len(overtaken) == 99
    assert "s7" not in overtaken
