"""Deliveries that wait: in their turn, or for another attempt."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from arborcast.admin import control_log
from arborcast.admin.filters import TopicTest, subscription_id
from arborcast.core.security.uris import to_uri
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import time_ms
from arborcast.dispatch.logs.parked import Tries
from arborcast.dispatch.operations.waiting import Asked, Wait, Waiting
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.topics import TopicPath

Stage = Literal["queued", "due", "under way", "awaited", "scheduled"]
"""queued: no attempt yet; under way: its push has no answer yet; awaited: its receiver reports the result later."""


class WaitingFilter(NamedTuple):
    """Which deliveries; an empty field selects all. `subscription` is an id or an address, `endpoint` the current
    address of the subscription's consumer."""

    subscription: str = ""
    endpoint: str = ""
    topic: TopicTest = TopicTest()
    notification: str = ""


class WaitingEntry(msgspec.Struct, frozen=True):
    """A delivery, with the state of its subscription (`over` if that ended) and the result of the last attempt.
    `next_ms` is the time of the next attempt, or of the end of the wait for a result; 0 if there is none."""

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
    attempts are left out, because the log of attempts is long."""

    waiting: tuple[WaitingEntry, ...]
    more: int
    complete: bool


def oldest(kafka: KafkaSettings, wanted: WaitingFilter, limit: int, control: ControlView | None = None) -> WaitingList:
    """The deliveries that wait longest, in this order. Subscriptions are looked up in `control`, or in the log.

    Raises ExpressionError, ConfigError, InfrastructureError.
    """
    is_meant = wanted.topic.test(kafka, control)
    known = control_log.read_control(kafka) if control is None else control
    name, endpoint = subscription_id(wanted.subscription), to_uri(wanted.endpoint)

    def asked(each: str) -> bool:
        return (not name or each == name) and (not endpoint or to_uri(_endpoint(known, each)) == endpoint)

    waiting = Waiting(kafka)
    waits, more = waiting.oldest(Asked(asked, is_meant, wanted.notification), limit)
    waits, complete = waiting.with_last(waits)
    now_ms = time_ms()
    return WaitingList(tuple(_delivery(each, known, now_ms) for each in waits), more, complete)


def _endpoint(control: ControlView, subscription: str) -> str:
    known = control.table.get(subscription)
    return known.consumer.address if known is not None else ""


def _delivery(wait: Wait, control: ControlView, now_ms: int) -> WaitingEntry:
    name, last, tries = wait.delivery.subscription, wait.last, wait.tries
    known = control.table.get(name)
    return WaitingEntry(
        notification=wait.notification,
        subscription=name,
        state=control.suspensions.state_of(known, now_ms) if known is not None else "over",
        endpoint=_endpoint(control, name),
        topic=wait.topic,
        priority=wait.priority,
        accepted_ms=wait.accepted_ms,
        since_ms=wait.since_ms,
        attempts=tries.number,
        stage=_stage(tries, now_ms),
        next_ms=tries.due_ms,
        error=last.error if last is not None else "",
        detail=last.detail if last is not None else "",
        status=last.status if last is not None else 0,
    )


def _stage(tries: Tries, now_ms: int) -> Stage:
    if not tries.number:
        return "queued"
    if tries.is_due(now_ms):
        return "due"
    if tries.under_way:
        return "under way"
    return "awaited" if tries.awaits else "scheduled"
