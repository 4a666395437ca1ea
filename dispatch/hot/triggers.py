"""Triggers: what is published because of a notification that matches one. Pure.

The id follows from the trigger's and from that of the notification. So who takes a notification again after a crash
publishes the same one again, and whoever gets both can tell.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from dispatch.logs.attempts import ErrorClass
from dispatch.settings import TopicRules
from topic_model.records.notifications import MOST_HOPS, Notification, made_at, type_of
from topic_model.subscriptions import Trigger
from topic_model.topics import is_system

_DIGEST_BYTES = 10  # what a UUID has beside its time


class Refused(NamedTuple):
    """Why a trigger publishes nothing: the error of the row that says so, and words for people."""

    error: ErrorClass
    detail: str


def derived_id(trigger_id: str, cause: Notification) -> str:
    """The id of what a trigger publishes because of a notification: a UUID of version 7 as the gateway's, with the time
    of the cause's."""
    digest = hashlib.blake2b(f"{trigger_id}\n{cause.id}".encode(), digest_size=_DIGEST_BYTES).digest()
    # An id that says no time (operators' events have such) is as old as its notification.
    value = (made_at(cause.id) or cause.accepted_ms) << 80 | int.from_bytes(digest)
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return f"{value:032x}"


def published(
    trigger_id: str, trigger: Trigger, cause: Notification, control: int, now_ms: int, rules: TopicRules
) -> Notification | Refused:
    """What a trigger publishes because of a notification, accepted now with the control log at this position."""
    if cause.hops >= MOST_HOPS:
        return Refused(
            "hops",
            f"{MOST_HOPS} triggers in a row have come to this, and a further one publishes nothing: do they publish "
            "into one another?",
        )
    if is_system(trigger.topic):
        return Refused("skipped", f"only the engine publishes to {trigger.topic}")
    target, same = trigger.target, not trigger.payload
    if target is None:
        return Refused("skipped", f"there is no topic {trigger.topic} to publish to (any more)")
    kind = type_of(cause) if same else trigger.type
    if rules.check_types and target.types and kind not in target.types:
        return Refused("skipped", f"the topic {trigger.topic} takes no message of the type {kind:.200}")
    return Notification(
        derived_id(trigger_id, cause),
        trigger.topic,
        cause.payload if same else trigger.payload.encode(),
        # Clocks differ, and nothing comes before what has caused it.
        max(now_ms, cause.accepted_ms),
        producer=cause.producer if same else b"",
        publisher=trigger.endpoint,
        traceparent=cause.traceparent,
        control=control,
        prefixes=trigger.prefixes,
        subject=cause.subject if same else b"",
        valid_until_ms=cause.valid_until_ms if same else 0,
        type=kind,
        priority=target.priority,
        reliable=target.reliable or (same and cause.reliable),
        cause=cause.id,
        hops=cause.hops + 1,
        distribution=target.distribution,
    )


def is_kept(trigger: Trigger, rules: TopicRules) -> bool:
    """Whether what a trigger publishes becomes the current message of its topic."""
    said = trigger.target.retain if trigger.target is not None else False
    return rules.retain_all if said is None else said
