"""Builders: values with the fields that a test names, and defaults for the others."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from arborcast.dispatch.matching.view import ControlState
from arborcast.topic_model.records.control import SubscriptionRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import EndpointReference, Subscription, TopicFilter
from arborcast.topic_model.topics import TopicPath


@dataclass
class Clock:
    """A clock that is moved by the test."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now

    def after(self, seconds: float) -> Clock:
        self.now += seconds
        return self


def notification(name: str = "n1", topic: str = "a/b", payload: bytes = b"<x/>", **more: Any) -> Notification:
    """An accepted notification with default values."""
    return Notification(name, TopicPath(topic), payload, more.pop("accepted_ms", 0), **more)


def subscription(name: str = "s", topic: str = "", url: str = "", **more: Any) -> Subscription:
    """A subscription to a topic, a subtree (`a//.`) or everything, pushed to `http://NAME/` or to `url`."""
    topics = (TopicFilter("", topic, topic),) if topic else ()
    return Subscription(name, EndpointReference(url or f"http://{name}/"), topics=topics, **more)


def known_to_redelivery(state: ControlState, *subscriptions: Subscription) -> Any:
    """The part of the routing view that a Redeliverer uses, over a state with these subscriptions."""
    for each in subscriptions:
        state.apply(SubscriptionRecord(each))
    asked = ("suspensions", "subscription", "suspended", "is_pushed_to", "servers", "listen")
    return SimpleNamespace(catch_up=lambda timeout_s: 0, **{name: getattr(state, name) for name in asked})
