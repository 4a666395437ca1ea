"""Triggers: publications caused by a matching notification. Pure.

The id is derived from those of the trigger and the notification, so a repetition after a crash publishes the same
notification, which receivers recognise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from arborcast.dispatch.logs.attempts import ErrorClass
from arborcast.dispatch.settings import TopicRules
from arborcast.topic_model.records.notifications import MAX_HOPS, MAX_TRIGGERED, Notification, made_at, type_of
from arborcast.topic_model.subscriptions import Trigger
from arborcast.topic_model.topics import is_system

_OWNERS = 2_000

_DIGEST_BYTES = 10  # of a UUID beside its time


class Refused(NamedTuple):
    """Why a trigger publishes nothing: the error of its row, and a text."""

    error: ErrorClass
    detail: str


def shares(left: int, triggers: Iterable[str]) -> Mapping[str, int]:
    """Further publications allowed for each of these triggers, of the `left` ones of their cause: with their own, they
    do not exceed it. A trigger without a share publishes nothing."""
    publish = sorted(triggers)[:left]
    each, more = divmod(left - len(publish), max(1, len(publish)))
    return {name: each + (number < more) for number, name in enumerate(publish)}


class OwnerRates:
    """The notifications that the triggers of each owner have published in the last minute, in this process."""

    def __init__(self) -> None:
        self._levels: dict[str, tuple[float, float]] = {}

    def may_publish(self, owner: str, per_minute: int, now_s: float) -> bool:
        """Whether the triggers of this owner may publish one more; if so it is counted. `now_s`: a monotonic clock."""
        level, at = self._levels.get(owner, (per_minute, now_s))
        level = min(per_minute, level + (now_s - at) * per_minute / 60)
        allowed = level >= 1
        if len(self._levels) >= _OWNERS:  # there are fewer triggers: most have published nothing for a minute
            self._levels = {name: last for name, last in self._levels.items() if now_s - last[1] < 60}
        self._levels[owner] = (level - allowed, now_s)
        return allowed


def derived_id(trigger_id: str, cause: Notification) -> str:
    """The id of a trigger's publication: a UUID of version 7 like the gateway's, with the time of the cause's id."""
    digest = hashlib.blake2b(f"{trigger_id}\n{cause.id}".encode(), digest_size=_DIGEST_BYTES).digest()
    # An id without a time (operators' events) is as old as its notification.
    value = (made_at(cause.id) or cause.accepted_ms) << 80 | int.from_bytes(digest)
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return f"{value:032x}"


def published(
    trigger_id: str,
    trigger: Trigger,
    cause: Notification,
    control: int,
    now_ms: int,
    rules: TopicRules,
    left: int | None = MAX_TRIGGERED,
) -> Notification | Refused:
    """The publication of a trigger for a notification, accepted now at this position of the control log. `left` is its
    share (`shares`), None without one."""
    if cause.hops >= MAX_HOPS:
        return Refused(
            "hops",
            f"{MAX_HOPS} triggers in a row have led to this notification, and a further one publishes nothing: is "
            "there a loop?",
        )
    if left is None:
        return Refused(
            "hops",
            f"triggers publish {MAX_TRIGGERED:,} notifications because of one, and a further one publishes nothing: "
            "is there a loop of several triggers?",
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
        # Clocks differ, and a publication cannot precede its cause.
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
        triggers_left=left,
    )


def is_retained(trigger: Trigger, rules: TopicRules) -> bool:
    """Whether a trigger's publication becomes the current message of its topic."""
    retain = trigger.target.retain if trigger.target is not None else False
    return rules.retain_all if retain is None else retain
