"""Deliveries that wait: in their turn, or for another attempt."""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple

import msgspec

from arborcast.admin import control_log
from arborcast.admin.filters import MOST_GROUPS, DeliveryGroup, TopicTest, subscription_id
from arborcast.core.security.uris import to_uri
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import time_ms
from arborcast.dispatch.logs.parked import Tries
from arborcast.dispatch.operations.waiting import Asked, Wait, Waiting
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.topics import TopicPath

Stage = Literal["queued", "due", "under way", "awaited", "scheduled", "held"]
"""queued: no attempt yet; held: no attempt until its subscription is resumed; under way: its push has no answer yet;
awaited: its receiver reports the result later."""


class WaitingFilter(NamedTuple):
    """Which deliveries; an empty field selects all. `subscription` is an id or an address, `endpoint` the current
    address of the subscription's consumer."""

    subscription: str = ""
    endpoint: str = ""
    topic: TopicTest = TopicTest()
    notification: str = ""


class WaitingEntry(msgspec.Struct, frozen=True):
    """A delivery, with the state of its subscription (`over` if that ended) and the result of the last attempt.
    `next_ms` is a time after now: of the next attempt, or of the end of the wait for a result; 0 if there is none."""

    notification: str
    subscription: str
    state: str
    endpoint: str
    topic: TopicPath
    priority: int
    accepted_ms: int
    since_ms: int
    attempts: int
    stage: Stage
    next_ms: int
    error: str
    detail: str
    status: int


class WaitingList(NamedTuple):
    """The deliveries that wait longest, and the number of further ones. If not `complete`, results of some last
    attempts are left out, because the log of attempts is long. `groups` are the largest ones of all, by endpoint and
    state of the subscription."""

    waiting: tuple[WaitingEntry, ...]
    more: int
    complete: bool
    groups: tuple[DeliveryGroup, ...] = ()


def oldest(
    kafka: KafkaSettings,
    wanted: WaitingFilter,
    limit: int,
    control: ControlView | None = None,
    skip: int = 0,
    newest_first: bool = False,
) -> WaitingList:
    """The deliveries that wait longest, or shortest, in this order, behind the first `skip`. Subscriptions are looked
    up in `control`, or in the log.

    Raises ExpressionError, ConfigError, InfrastructureError.
    """
    is_meant = wanted.topic.test(kafka, control)
    known = control_log.read_control(kafka) if control is None else control
    name, endpoint = subscription_id(wanted.subscription), to_uri(wanted.endpoint)

    def asked(each: str) -> bool:
        return (not name or each == name) and (not endpoint or to_uri(_endpoint(known, each)) == endpoint)

    waiting = Waiting(kafka)
    waits, more, counts = waiting.oldest(
        Asked(asked, is_meant, wanted.notification), limit, skip, newest_first=newest_first
    )
    waits, complete = waiting.with_last(waits)
    now_ms = time_ms()
    grouped = Counter[tuple[str, str]]()
    for each, count in counts.items():
        grouped[_endpoint(known, each) or each, _state(known, each, now_ms)] += count
    groups = (DeliveryGroup(where, state, count) for (where, state), count in grouped.most_common(MOST_GROUPS))
    return WaitingList(tuple(_delivery(each, known, now_ms) for each in waits), more, complete, tuple(groups))


def _state(control: ControlView, subscription: str, now_ms: int) -> str:
    known = control.table.get(subscription)
    return control.suspensions.state_of(known, now_ms) if known is not None else "over"


def _endpoint(control: ControlView, subscription: str) -> str:
    known = control.table.get(subscription)
    return known.consumer.address if known is not None else ""


def _delivery(wait: Wait, control: ControlView, now_ms: int) -> WaitingEntry:
    name, last, tries = wait.delivery.subscription, wait.last, wait.tries
    state = _state(control, name, now_ms)
    stage = _stage(tries, now_ms, held=state in ("suspended", "paused"))
    return WaitingEntry(
        notification=wait.notification,
        subscription=name,
        state=state,
        endpoint=_endpoint(control, name),
        topic=wait.topic,
        priority=wait.priority,
        accepted_ms=wait.accepted_ms,
        since_ms=wait.since_ms,
        attempts=tries.number,
        stage=stage,
        next_ms=tries.due_ms if stage in ("under way", "awaited", "scheduled") else 0,
        error=last.error if last is not None else "",
        detail=last.detail if last is not None else "",
        status=last.status if last is not None else 0,
    )


def _stage(tries: Tries, now_ms: int, held: bool) -> Stage:
    due = tries.is_due(now_ms)
    if tries.number and tries.awaits and not due:
        return "under way" if tries.under_way else "awaited"
    if held:
        return "held"
    if not tries.number:
        return "queued"
    return "due" if due else "scheduled"
