"""A task of the real-time gear beside its driver's messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from arborcast.dispatch.hot import task as partition_task
from arborcast.dispatch.realtime.messages import ExclusionChange, WorkerProgress, WorkerUpdate
from arborcast.dispatch.realtime.task import LogLink, RealtimeJob
from arborcast.dispatch.redelivery.partition_reports import PartitionReport
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.routing import Found
from arborcast.topic_model.topics import TopicPath
from tests.support.fake_producer import Sent
from tests.support.realtime_world import SETTINGS, Running
from tests.support.redelivery_world import World


class Engine:
    """What a task needs; its only subscription is `s`."""

    def __init__(self) -> None:
        self.world = World()
        self.world.subscribe("s")
        self.accepted: dict[int, list[bytes]] = {0: []}
        self.parked: list[tuple[bytes, bytes, int]] = []
        self.pushed = 0

    def monotonic(self) -> float:
        return self.world.now_ms / 1000

    def written(self, record: Sent) -> int:
        return 0

    def seen(self, request: object) -> None:
        self.pushed += 1

    def of(self, notification: Notification) -> Found:
        return Found([self.world.subscriptions["s"]], [])

    def is_late(self) -> bool:
        return False

    def write(self, progress: object) -> None: ...

    def settle(self, timeout_s: float) -> None: ...


def test_a_lane_stays_held_while_the_driver_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    monkeypatch.setattr(partition_task, "time", SimpleNamespace(monotonic=engine.monotonic))
    running = Running(cast(Any, engine), RealtimeJob(settings=SETTINGS, number=1, began_s=engine.monotonic()), 0, 0)
    running.messages.append(WorkerUpdate(1, 0, 0, 0, exclusions=ExclusionChange(held=frozenset({"s"}))))
    notification = Notification("n", TopicPath("a"), b"<x/>", engine.world.now_ms)
    running.rows.append((notifications.encode(notification)[1], 0, 0))
    running.step()

    running.messages.append(WorkerUpdate(1, 0, 0, 0, base=b"nowhere", complete=False))
    running.step()
    running.messages.append(
        WorkerUpdate(1, 0, 0, 0, exclusions=ExclusionChange(held=frozenset({"s"}), read={0: 0}), complete=False)
    )
    running.step()
    assert engine.pushed == 0, "what is parked was not tried"

    running.messages.append(WorkerUpdate(1, 0, 0, 0, exclusions=ExclusionChange(freed=frozenset({"s"}))))
    running.step()
    assert engine.pushed == 1


def test_a_task_reports_that_it_has_stopped_when_all_is_settled() -> None:
    written: list[WorkerProgress] = []
    log = SimpleNamespace(write=written.append, is_late=lambda: False, settle=lambda timeout_s: None)
    outcomes = SimpleNamespace(report=PartitionReport(), take_report=PartitionReport, forget=lambda: None)
    settling = SimpleNamespace(
        stopped=True,
        taken=SimpleNamespace(partition=0, next=2),
        intake=SimpleNamespace(outcomes=outcomes),
        worker=SimpleNamespace(journal=SimpleNamespace(passed=lambda: True)),
        mark=lambda: 1,
    )
    view = SimpleNamespace(complete=True)
    nothing: Any = SimpleNamespace()
    link = LogLink(
        RealtimeJob(settings=SETTINGS, number=1, began_s=0.0), 0, nothing, cast(Any, log), cast(Any, view), nothing
    )
    for now in (0.0, 1.0, 2.0):
        link.report(cast(Any, settling), now)
    link.end(cast(Any, settling))
    assert [(each.position, each.stopped) for each in written[-2:]] == [(1, False), (2, True)]
    assert sum(each.stopped for each in written) == 1
