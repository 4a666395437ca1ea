"""Demand-based publishing: the subscriptions at publishers that should exist, and the steps to get there. Pure.

A publisher that registers with Demand publishes only while it has a subscriber, so the gateway subscribes while one of
its topics has subscribers: one subscription per registered topic. Without subscribers the subscription is paused, or
ended where the publisher does not support pausing. A paused one is not renewed: it expires.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from arborcast.core.recent import Recent
from arborcast.core.wall_clock import is_due
from arborcast.topic_model.patterns.alternatives import Alternative, Reach, anchors_above, is_below, root_anchor
from arborcast.topic_model.patterns.patterns import XPATH_SCHEME, parse_normal
from arborcast.topic_model.publishers import Registration, Upstream
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.subscriptions import Subscription, TopicFilter
from arborcast.topic_model.topics import TopicPath, parent_of


@dataclass(frozen=True)
class SubscribeUpstream:
    """Subscribe at the publisher to this topic."""

    topic: TopicFilter


class UpstreamAction(Enum):
    """A change of a subscription at a publisher."""

    RENEW = "more time is requested"
    RESUME = "there is a subscriber again"
    PAUSE = "no subscriber is left"
    END = "no subscriber is left, and the publisher cannot pause"
    LEAVE = "it has a former address of this gateway"
    FORGET = "it has expired; the publisher gets no message"


@dataclass(frozen=True)
class ChangeUpstream:
    """Do this to a subscription at the publisher."""

    action: UpstreamAction
    upstream: Upstream


Step = SubscribeUpstream | ChangeUpstream


def steps(registration: Registration, wanted: Callable[[TopicFilter], bool], now_ms: int, consumer: str) -> list[Step]:
    """The steps for a registration. `wanted` is the test for a topic with subscribers, `consumer` the address to which
    its publisher has to send."""
    planned: list[Step] = []
    there = {upstream.topic: upstream for upstream in registration.upstream}
    for topic in registration.topics:
        upstream = there.pop(topic.normal, None)
        if upstream is not None and upstream.terminates_ms is not None and upstream.terminates_ms <= now_ms:
            planned.append(ChangeUpstream(UpstreamAction.FORGET, upstream))
            upstream = None
        elif upstream is not None and upstream.consumer not in ("", consumer):
            planned.append(ChangeUpstream(UpstreamAction.LEAVE, upstream))
            upstream = None
        if wanted(topic):
            if upstream is None:
                planned.append(SubscribeUpstream(topic))
            elif upstream.paused:
                planned.append(ChangeUpstream(UpstreamAction.RESUME, upstream))
            elif _renewal_is_due(upstream, now_ms):
                planned.append(ChangeUpstream(UpstreamAction.RENEW, upstream))
        elif upstream is not None and not upstream.paused:
            planned.append(
                ChangeUpstream(UpstreamAction.PAUSE if registration.pausable else UpstreamAction.END, upstream)
            )
    return planned


def _renewal_is_due(upstream: Upstream, now_ms: int) -> bool:
    if upstream.renew_ms is None or upstream.terminates_ms is None:
        return False
    # A fifth of the granted time is between the two. After a clock was put back the publisher would end it first.
    decided_ms = upstream.terminates_ms - 5 * (upstream.terminates_ms - upstream.renew_ms)
    return is_due(upstream.renew_ms, decided_ms, now_ms)


def single_topic(topic: TopicFilter) -> TopicPath | None:
    """The topic of a registered expression, None if it may select several."""
    known = _singles.get(topic.normal)
    if known is None:
        known = (parse_normal(topic.normal).single_topic(),)
        _singles.put(topic.normal, known, 2 * len(topic.normal))
    return known[0]


# Registered topics are evaluated at every change of the control log. Bytes: some thirty thousand topics.
_singles: Recent[str, tuple[TopicPath | None]] = Recent(8 * 1024 * 1024)


def is_wanted(path: TopicPath, table: RoutingTable, now_ms: int) -> bool:
    """Whether an active subscription selects a topic."""
    return any(not (one.paused or one.expired(now_ms)) for one in table.match(path))


def may_need(subscription: Subscription, topic: TopicFilter, now_ms: int) -> bool:
    """Whether an active subscription may select a topic of a registered expression with wildcards.

    Topics that do not exist yet count, too. True in doubt.
    """
    return (
        not subscription.paused
        and not subscription.expired(now_ms)
        and all(overlap(topic.normal, each.normal) for each in subscription.topics)
    )


# A topic, or an anchor with a reach: nearly all expressions, recognised without parsing.
_PLAIN = re.compile(r"((?:\{[^}]*\}|[^{}*|/]++|/(?![/*]))+)(//\.|//\*|/\*)?")


def overlap(one: str, other: str) -> bool:
    """Whether both normal forms may select a common topic. False only if that is impossible."""
    if one.startswith(XPATH_SCHEME) or other.startswith(XPATH_SCHEME):
        return True
    a, b = _PLAIN.fullmatch(one), _PLAIN.fullmatch(other)
    if a is None or b is None:
        return any(_may_meet(x, y) for x in parse_normal(one).alternatives for y in parse_normal(other).alternatives)
    if a[2] is None:
        return _selects(b[1], b[2], TopicPath(a[1]))
    if b[2] is None:
        return _selects(a[1], a[2], TopicPath(b[1]))
    return a[1] == b[1] or is_below(TopicPath(a[1]), b[1]) or is_below(TopicPath(b[1]), a[1])


def _selects(anchor: str, reach: str | None, path: TopicPath) -> bool:
    match reach:
        case None:
            return path == anchor
        case "//.":
            return path == anchor or is_below(path, anchor)
        case "//*":
            return is_below(path, anchor)
        case _:
            return (parent_of(path) or root_anchor(path)) == anchor


def _may_meet(a: Alternative, b: Alternative) -> bool:
    for this, that in ((a, b), (b, a)):
        if not this.rest and this.reach is Reach.SELF:
            return that.matches(TopicPath(this.anchor))
    return a.anchor == b.anchor or a.anchor in anchors_above(b.anchor) or b.anchor in anchors_above(a.anchor)
