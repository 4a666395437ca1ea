"""Triggers: subscriptions whose notifications are not pushed, but have another one published.

What is published is as the facts of its topic say: its priority, whether it is kept for later subscribers. A worker
does not know the topic tree. So the routing table puts these facts into the trigger, and again whenever they change.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from arborcast.topic_model.patterns.alternatives import is_below
from arborcast.topic_model.records.notifications import MOST_PRIORITY
from arborcast.topic_model.subscriptions import Subscription, Trigger, TriggerTarget
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.tree import TopicTree


class TriggersInForce:
    """Those that are there, in the order in which they were made; a part of the routing table, whose tree `topics`
    is."""

    def __init__(self, topics: TopicTree) -> None:
        self._topics = topics
        self._there: dict[str, Subscription] = {}
        self._into: dict[TopicPath, dict[str, None]] = {}  # ids: a tree has a million topics

    def put(self, subscription: Subscription) -> Subscription:
        """A trigger as its record has it; returns it with what holds for its topic now."""
        self.ended(subscription.id)
        self._there[subscription.id] = subscription
        self._into.setdefault(_trigger(subscription).topic, {})[subscription.id] = None
        return self._current(subscription)

    def ended(self, trigger_id: str) -> None:
        """It is gone, if it was there."""
        gone = self._there.pop(trigger_id, None)
        if gone is not None:
            topic = _trigger(gone).topic
            del self._into[topic][trigger_id]
            if not self._into[topic]:
                del self._into[topic]

    def into(self, topic: TopicPath, *, below: bool = False) -> list[Subscription]:
        """Those that publish to a topic, or below it, too, with what holds for them now."""
        topics = [each for each in self._into if each == topic or is_below(each, topic)] if below else [topic]
        return [self._current(self._there[each]) for path in topics for each in self._into.get(path, ())]

    def named(self, name: str) -> Subscription | None:
        """The first one of this name: two gateways may have made one each at the same moment."""
        return next((each for each in self._there.values() if _trigger(each).name == name), None)

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._there.values())

    def __len__(self) -> int:
        return len(self._there)

    def _current(self, subscription: Subscription) -> Subscription:
        trigger = _trigger(subscription)
        topic, target = self._topics.get(trigger.topic), None
        if topic is not None:
            policy = topic.policy
            # A directory may say more than there is.
            priority = max(-MOST_PRIORITY, min(policy.priority, MOST_PRIORITY))
            distribution = self._topics.distribution(trigger.topic)
            target = TriggerTarget(policy.retain, priority, policy.reliable, topic.message_types, distribution)
        return msgspec.structs.replace(subscription, trigger=msgspec.structs.replace(trigger, target=target))


def _trigger(subscription: Subscription) -> Trigger:
    assert subscription.trigger is not None  # noqa: S101  # its record has one
    return subscription.trigger
