"""The control log with its times: who was subscribed to what, when. Pure."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

from topic_model.records import (
    ControlRecord,
    SubscriptionEnded,
    SubscriptionRecord,
    Tombstone,
    subscription_key,
)
from topic_model.routing import RoutingTable
from topic_model.subscriptions import Subscription

_SUBSCRIPTION = subscription_key("")


@dataclass(frozen=True)
class State:
    """What a subscription was from a time on. `subscription` None: it had ended, for `reason`."""

    since_ms: int
    subscription: Subscription | None
    reason: str = ""


@dataclass
class ControlHistory:
    """Subscriptions with their states over time, and the topics as they are now.

    The log is compacted: of what is older than a day only the last state is left.
    """

    topics: list[ControlRecord] = field(default_factory=list)
    states: dict[str, list[State]] = field(default_factory=dict)

    def add(self, record: ControlRecord, at_ms: int) -> None:
        """The next record of the log, with its time."""
        match record:
            case SubscriptionRecord(subscription=subscription):
                self.states.setdefault(subscription.id, []).append(State(at_ms, subscription))
            case SubscriptionEnded(id=name, reason=reason):
                self.states.setdefault(name, []).append(State(at_ms, None, reason))
            case Tombstone(key=key) if key.startswith(_SUBSCRIPTION):
                states = self.states.get(key.removeprefix(_SUBSCRIPTION), [])
                if states and states[-1].subscription is not None:
                    states.append(State(at_ms, None, "unknown"))
            case _:
                self.topics.append(record)

    def at(self, name: str, time_ms: int) -> State | None:
        """The state of a subscription at a time; None when it was not there yet, or nothing is known of it.

        Where the states of that time have been compacted away, the next one that is known stands for them.
        """
        states = self.states.get(name, [])
        position = bisect.bisect_right([state.since_ms for state in states], time_ms)
        if position:
            return states[position - 1]
        first = states[0] if states else None
        if first is not None and first.subscription is not None and 0 < first.subscription.created_ms <= time_ms:
            return first
        return None

    def last(self, name: str) -> Subscription | None:
        """The subscription as it was last, ended or not."""
        return next((each.subscription for each in reversed(self.states.get(name, [])) if each.subscription), None)

    def table(self, time_ms: int) -> RoutingTable:
        """The routing table with the subscriptions of that time and the topics of now."""
        table = RoutingTable(remembered_answers=16)
        for record in self.topics:
            table.apply(record)
        for name in self.states:
            state = self.at(name, time_ms)
            if state is not None and state.subscription is not None:
                table.apply(SubscriptionRecord(state.subscription))
        return table
