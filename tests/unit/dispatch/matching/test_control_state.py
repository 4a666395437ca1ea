from __future__ import annotations

from typing import Any

import pytest

from arborcast.dispatch.matching.view import ControlState, SubscriptionListener
from arborcast.topic_model.records.control import (
    SubscriptionRecord,
    SubscriptionSuspended,
    Tombstone,
    TopicRecord,
    ending,
    subscription_key,
    suspension_key,
)
from arborcast.topic_model.topics import TopicPath
from tests.support.make import subscription

HERE = "http://here/"


class Told(SubscriptionListener):
    def __init__(self) -> None:
        self.changed: list[str] = []
        self.released: list[str] = []

    def subscription_changed(self, subscription_id: str) -> None:
        self.changed.append(subscription_id)

    def endpoint_released(self, endpoint: str) -> None:
        self.released.append(endpoint)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def state(told: Told) -> ControlState:
    made = ControlState()
    made.listen(told)
    return made


def subscribe(state: ControlState, name: str, **more: Any) -> None:
    state.apply(SubscriptionRecord(subscription(name, url=HERE, **more)))


def test_an_endpoint_is_there_as_long_as_anybody_has_it(state: ControlState, told: Told) -> None:
    subscribe(state, "a")
    subscribe(state, "b")
    for record in ending("a", "unsubscribed", 1):
        state.apply(record)
    assert state.is_pushed_to(HERE)
    assert told.released == []

    state.apply(Tombstone(subscription_key("b")))

    assert not state.is_pushed_to(HERE)
    assert (state.endpoints, told.released) == (0, [HERE])


def test_records_that_say_the_same_again_count_once(state: ControlState, told: Told) -> None:
    for paused in (False, False, True):
        subscribe(state, "a", paused=paused)
    for record in (*ending("a", "expired", 1), *ending("a", "unsubscribed", 1)):
        state.apply(record)

    assert (state.endpoints, told.released) == (0, [HERE])


def test_nobody_pushes_to_a_pull_point(state: ControlState) -> None:
    subscribe(state, "a", pull_point="p")
    assert state.endpoints == 0


def test_somebody_is_told_when_the_state_has_changed_already_and_of_nothing_else(
    state: ControlState, told: Told
) -> None:
    subscribe(state, "a")
    state.apply(TopicRecord(TopicPath("t")))
    state.apply(Tombstone("topic:sub:a"))
    assert told.changed == ["a"]

    state.apply(SubscriptionSuspended("a", "refused", 1, 2))
    assert state.suspended("a")
    state.apply(Tombstone(suspension_key("a")))
    assert not state.suspended("a")
    assert told.changed == ["a"] * 3
