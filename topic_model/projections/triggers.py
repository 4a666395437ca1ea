"""Triggers: subscriptions that publish another notification instead of a push.

Priority and retention of the publication are properties of its topic. A worker has no topic tree, so the routing table
adds these properties to the trigger and updates them.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from arborcast.topic_model.patterns.alternatives import is_below
from arborcast.topic_model.records.notifications import MAX_PRIORITY
from arborcast.topic_model.subscriptions import Subscription, Trigger, TriggerTarget
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.tree import TopicTree


class TriggersInForce:
    """The current triggers in the order of creation; a part of the routing table with the tree `topics`."""

    def __init__(self, topics: TopicTree) -> None:
        self._topics = topics
        self._triggers: dict[str, Subscription] = {}
        self._into: dict[TopicPath, dict[str, None]] = {}  # ids, since a tree has a million topics

    def put(self, subscription: Subscription) -> Subscription:
        """Apply a trigger's record; returns the trigger with the properties of its topic."""
        self.ended(subscription.id)
        self._triggers[subscription.id] = subscription
        self._into.setdefault(_trigger(subscription).topic, {})[subscription.id] = None
        return self._current(subscription)

    def ended(self, trigger_id: str) -> None:
        """Remove a trigger, if it exists."""
        removed = self._triggers.pop(trigger_id, None)
        if removed is not None:
            topic = _trigger(removed).topic
            del self._into[topic][trigger_id]
            if not self._into[topic]:
                del self._into[topic]

    def publishing_to(self, topic: TopicPath, *, below: bool = False) -> list[Subscription]:
        """The triggers that publish to a topic, with `below` also below it, with the current properties."""
        topics = [each for each in self._into if each == topic or is_below(each, topic)] if below else [topic]
        return [self._current(self._triggers[each]) for path in topics for each in self._into.get(path, ())]

    def named(self, name: str) -> Subscription | None:
        """The first trigger of this name; two gateways may have created one each at the same time."""
        return next((each for each in self._triggers.values() if _trigger(each).name == name), None)

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._triggers.values())

    def __len__(self) -> int:
        return len(self._triggers)

    def _current(self, subscription: Subscription) -> Subscription:
        trigger = _trigger(subscription)
        topic, target = self._topics.get(trigger.topic), None
        if topic is not None:
            policy = topic.policy
            # A directory may contain values out of range.
            priority = max(-MAX_PRIORITY, min(policy.priority, MAX_PRIORITY))
            distribution = self._topics.distribution(trigger.topic)
            target = TriggerTarget(policy.retain, priority, policy.reliable, topic.message_types, distribution)
        return msgspec.structs.replace(subscription, trigger=msgspec.structs.replace(trigger, target=target))


def _trigger(subscription: Subscription) -> Trigger:
    assert subscription.trigger is not None  # noqa: S101  # its record has one
    return subscription.trigger
