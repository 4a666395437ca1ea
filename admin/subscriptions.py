"""Subscriptions: their conditions and states."""

from __future__ import annotations

from arborcast.topic_model.subscriptions import Subscription


def conditions_of(subscription: Subscription) -> str:
    """What a notification must fulfil beyond its topic, in words; empty for nothing."""
    return " and ".join(
        [f"payload: {each.text}" for each in subscription.content]
        + [f"producer: {each.text}" for each in subscription.producer]
        + [f"type: {' or '.join(subscription.types)}" for _ in subscription.types[:1]]
        + [f"{interval_ms / 1000:g} s apart" for interval_ms in [subscription.policy.interval_ms] if interval_ms]
    )
