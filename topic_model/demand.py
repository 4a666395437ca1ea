"""Demand-based publishing: which subscriptions at publishers there should be, and what to do to get there. Pure.

A publisher that registers with Demand publishes only while somebody subscribes at it, so we do exactly while somebody
wants what it offers: one subscription per registered topic. When the last one who wants it is gone, the subscription
is paused, or ended where the publisher knows no pause. A paused one is not renewed: it runs out by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from topic_model.patterns import XPATH_SCHEME, Alternative, Reach, anchors_above, parse_normal
from topic_model.publishers import Registration, Upstream
from topic_model.routing import RoutingTable
from topic_model.subscriptions import Subscription, TopicFilter
from topic_model.topics import TopicPath


@dataclass(frozen=True)
class Subscribe:
    """Subscribe at the publisher to this topic."""

    topic: TopicFilter


@dataclass(frozen=True)
class Renew:
    """Ask for more time."""

    upstream: Upstream


@dataclass(frozen=True)
class Resume:
    """Somebody wants it again."""

    upstream: Upstream


@dataclass(frozen=True)
class Pause:
    """Nobody wants it any more."""

    upstream: Upstream


@dataclass(frozen=True)
class End:
    """Nobody wants it any more, and the publisher knows no pause."""

    upstream: Upstream


@dataclass(frozen=True)
class Forget:
    """It ran out; there is nothing to be said to the publisher."""

    upstream: Upstream


Step = Subscribe | Renew | Resume | Pause | End | Forget


def steps(registration: Registration, wanted: Callable[[TopicFilter], bool], now_ms: int) -> list[Step]:
    """What is to be done for a registration. `wanted` says whether somebody wants a topic of it."""
    planned: list[Step] = []
    there = {upstream.topic: upstream for upstream in registration.upstream}
    for topic in registration.topics:
        upstream = there.pop(topic.normal, None)
        if upstream is not None and upstream.terminates_ms is not None and upstream.terminates_ms <= now_ms:
            planned.append(Forget(upstream))
            upstream = None
        if wanted(topic):
            if upstream is None:
                planned.append(Subscribe(topic))
            elif upstream.paused:
                planned.append(Resume(upstream))
            elif upstream.renew_ms is not None and upstream.renew_ms <= now_ms:
                planned.append(Renew(upstream))
        elif upstream is not None and not upstream.paused:
            planned.append(Pause(upstream) if registration.pausable else End(upstream))
    return planned


def is_wanted(topic: TopicFilter, table: RoutingTable, subscriptions: Iterable[Subscription], now_ms: int) -> bool:
    """Whether an active subscription wants a registered topic.

    For one that names a single topic the table is asked. For others, topics that do not exist yet count too, so the
    `subscriptions` (all of the table) are gone through; when in doubt, it is wanted.
    """
    single = parse_normal(topic.normal).single_topic()
    if single is not None:
        return any(not one.expired(now_ms) for one in table.match(single))
    return any(
        not one.paused and not one.expired(now_ms) and all(overlap(topic.normal, each.normal) for each in one.topics)
        for one in subscriptions
    )


@lru_cache(maxsize=100_000)
def overlap(one: str, other: str) -> bool:
    """Whether some topic may be selected by both normal forms. False only when there can be none."""
    if one.startswith(XPATH_SCHEME) or other.startswith(XPATH_SCHEME):
        return True
    return any(_may_meet(a, b) for a in parse_normal(one).alternatives for b in parse_normal(other).alternatives)


def _may_meet(a: Alternative, b: Alternative) -> bool:
    for this, that in ((a, b), (b, a)):
        if not this.rest and this.reach is Reach.SELF:
            return that.matches(TopicPath(this.anchor))
    return a.anchor == b.anchor or a.anchor in anchors_above(b.anchor) or b.anchor in anchors_above(a.anchor)
