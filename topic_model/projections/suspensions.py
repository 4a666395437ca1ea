"""Suspended subscriptions, for failing endpoints or expensive conditions: a fold over the control log.

A suspension has a separate key instead of a field in the subscription, since the job suspends while gateways renew and
pause.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from arborcast.topic_model.records.control import (
    ControlRecord,
    SubscriptionEnded,
    SubscriptionSuspended,
    Tombstone,
    TriggerEnded,
)
from arborcast.topic_model.subscriptions import Subscription

State = Literal["active", "paused", "suspended", "expired"]


class Suspensions:
    """The current suspensions, a function of the last record of each key."""

    def __init__(self) -> None:
        self._suspended: dict[str, SubscriptionSuspended] = {}
        # Until the next change: the driver compares them ten times in a second.
        self._ids: frozenset[str] | None = None
        self._unjudged: frozenset[str] | None = None

    def apply(self, record: ControlRecord) -> None:
        match record:
            case SubscriptionSuspended(id=subscription_id):
                self._suspended[subscription_id] = record
                self._ids = self._unjudged = None
            case SubscriptionEnded(id=subscription_id) | TriggerEnded(id=subscription_id):
                self._end(subscription_id)
            case Tombstone(subject=("susp" | "sub", subscription_id)):
                self._end(subscription_id)

    def _end(self, subscription_id: str) -> None:
        if self._suspended.pop(subscription_id, None) is not None:
            self._ids = self._unjudged = None

    def get(self, subscription_id: str) -> SubscriptionSuspended | None:
        """Reason and time of a subscription's suspension; None without one."""
        return self._suspended.get(subscription_id)

    def state_of(self, subscription: Subscription, now_ms: int | None = None) -> State:
        """The state of a subscription: active, paused (by the subscriber) or suspended (by the engine), which takes
        precedence because an operator must act. With `now_ms` also expired; such a subscription can still be
        renewed."""
        if now_ms is not None and subscription.expired(now_ms):
            return "expired"
        if subscription.id in self._suspended:
            return "suspended"
        return "paused" if subscription.paused else "active"

    def resumption(self, subscription_id: str) -> list[ControlRecord]:
        """The record that ends a suspension, if any."""
        return [Tombstone.of("susp", subscription_id)] if subscription_id in self._suspended else []

    def ids(self) -> frozenset[str]:
        if self._ids is None:
            self._ids = frozenset(self._suspended)
        return self._ids

    def unjudged(self) -> frozenset[str]:
        """Subscriptions suspended for expensive conditions, which are not evaluated."""
        if self._unjudged is None:
            self._unjudged = frozenset(each.id for each in self._suspended.values() if each.cause == "conditions")
        return self._unjudged

    def __contains__(self, subscription_id: str) -> bool:
        return subscription_id in self._suspended

    def __iter__(self) -> Iterator[SubscriptionSuspended]:
        return iter(self._suspended.values())

    def __len__(self) -> int:
        return len(self._suspended)
