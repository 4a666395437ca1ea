"""What a routing table tells about itself: routes for people and tables, sizes for the metrics."""

from __future__ import annotations

import msgspec

from topic_model.subscriptions import Subscription
from topic_model.topics import TopicPath


class Route(msgspec.Struct, frozen=True):
    """A topic, a subscription that it goes to, and the normal form of the filter through which."""

    topic: TopicPath
    expression: str
    subscription: Subscription

    @property
    def subscription_id(self) -> str:
        """The subscription's id."""
        return self.subscription.id


class Statistics(msgspec.Struct, frozen=True):
    """Sizes of a routing table, for the metrics."""

    topics: int
    subscriptions: int
    selectors: int
    links: int
    steps: int
    answers: int
    termination_entries: int
