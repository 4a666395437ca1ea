from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.matching.bases import FileBases
from arborcast.dispatch.matching.view import ControlState, RoutingView, SubscriptionListener
from arborcast.topic_model.records.control import (
    SubscriptionRecord,
    SubscriptionSuspended,
    Tombstone,
    TopicRecord,
    ending,
)
from arborcast.topic_model.topics import TopicPath
from tests.support.make import subscription

HERE = "http://here/"


class RecordingListener(SubscriptionListener):
    def __init__(self) -> None:
        self.changed: list[str] = []
        self.released: list[str] = []

    def subscription_changed(self, subscription_id: str) -> None:
        self.changed.append(subscription_id)

    def endpoint_released(self, endpoint: str) -> None:
        self.released.append(endpoint)


@pytest.fixture
def listener() -> RecordingListener:
    return RecordingListener()


@pytest.fixture
def state(listener: RecordingListener) -> ControlState:
    made = ControlState()
    made.listen(listener)
    return made


def subscribe(state: ControlState, name: str, **more: Any) -> None:
    state.apply(SubscriptionRecord(subscription(name, url=HERE, **more)))


def test_an_endpoint_is_released_with_its_last_subscription(state: ControlState, listener: RecordingListener) -> None:
    for paused in (False, False, True):
        subscribe(state, "a", paused=paused)
    subscribe(state, "b")
    subscribe(state, "pulling", pull_point="p")
    for record in (*ending("a", "expired", 1), *ending("a", "unsubscribed", 1)):
        state.apply(record)
    assert state.is_pushed_to(HERE)
    assert (state.subscription("a"), state.subscription("b")) == (None, subscription("b", url=HERE))
    assert listener.released == []

    state.apply(Tombstone.of("sub", "b"))
    assert not state.is_pushed_to(HERE)
    assert listener.released == [HERE]


def test_listeners_are_called_after_a_change(state: ControlState, listener: RecordingListener) -> None:
    subscribe(state, "a")
    state.apply(TopicRecord(TopicPath("t")))
    state.apply(Tombstone("topic:sub:a"))
    assert listener.changed == ["a"]

    state.apply(SubscriptionSuspended("a", "refused", 1, 2))
    assert state.suspended("a")
    state.apply(Tombstone.of("susp", "a"))
    assert not state.suspended("a")
    assert listener.changed == ["a"] * 3


class FakeFollower:
    """A follower of a control log; the test adds subscriptions."""

    def __init__(self, view: RoutingView) -> None:
        self._view = view
        self._waiting: list[str] = []
        self.position = 0

    def add(self, name: str) -> None:
        self._waiting.append(name)

    def read_to_end(self, timeout_s: float) -> int:
        while self._waiting:
            self._view.apply(SubscriptionRecord(subscription(self._waiting.pop(0))), self.position)
            self.position += 1
        return self.position

    def close(self) -> None:
        """Nothing to close."""


def test_a_stopped_update_applies_no_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = RoutingView(KafkaSettings(), cast(Any, None), FileBases(tmp_path / "bases"))
    log = FakeFollower(view)
    monkeypatch.setattr(view, "_follower", log)
    stopped, refused = threading.Event(), list[InfrastructureError]()

    def late() -> None:
        try:
            view.advance(1.0, False, stopped=stopped.is_set)
        except InfrastructureError as error:
            refused.append(error)

    with view._lock:  # a batch that starts
        waiting = threading.Thread(target=late)
        waiting.start()
        stopped.set()
        log.add("s")
    waiting.join()
    view.advance(1.0, True)
    log.add("t")
    with pytest.raises(InfrastructureError, match="have stopped"):
        view.advance(1.0, False, stopped=stopped.is_set)
    assert refused
    assert len(view.advance(1.0, False).steps) == 1
    view.close()
