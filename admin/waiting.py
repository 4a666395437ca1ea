"""Waiting deliveries: in their turn, or for another attempt, which can be requested."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from arborcast.admin import control_log
from arborcast.admin.filters import MOST_GROUPS, DeliveryGroup, TopicTest, options_text, subscription_id
from arborcast.admin.operations import recorded
from arborcast.core.errors import NotFound
from arborcast.core.security.uris import to_uri, without_password
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import time_ms
from arborcast.dispatch.logs.parked import Tries
from arborcast.dispatch.operations.views import (
    DeliveryViews,
    LettersView,
    PendingView,
    ViewEntry,
    ViewFilter,
    ViewGroup,
    ViewPlace,
    opened,
    pending_of,
)
from arborcast.dispatch.operations.waiting import Wait, Waiting
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.records.operations import Operator, change
from arborcast.topic_model.topics import TopicPath

Stage = Literal["queued", "due", "in flight", "awaited", "scheduled", "held"]
"""queued: no attempt yet; held: no attempt until its subscription is resumed; in flight: its push has no answer yet;
awaited: its receiver reports the result later."""


class WaitingFilter(NamedTuple):
    """A selection of deliveries; an empty field selects all. `subscription` is an id or an address, `endpoint` the
    current address of the subscription's consumer. `chosen` are pairs of notification and subscription."""

    subscription: str = ""
    endpoint: str = ""
    topic: TopicTest = TopicTest()
    notification: str = ""
    chosen: frozenset[tuple[str, str]] = frozenset()

    def text(self) -> str:
        """The conditions as text, as the options of a command."""
        return options_text({**self._asdict(), "topic": self.topic.text, "chosen": ""}, self.chosen)

    def in_view(self, kafka: KafkaSettings, control: ControlView) -> ViewFilter:
        """The same for a view of the log. Raises ExpressionError, ConfigError, InfrastructureError."""
        name, endpoint = subscription_id(self.subscription), to_uri(self.endpoint)
        is_topic = self.topic.test(kafka, control)

        def includes(group: ViewGroup) -> bool:
            if (name and group.subscription != name) or not is_topic(group.topic):
                return False
            its = _endpoint(control, group.subscription)  # pages show it without a password
            return not endpoint or endpoint in (to_uri(its), to_uri(without_password(its)))

        def chosen(entry: ViewEntry) -> bool:
            return (pending_of(entry.value).notification.id, entry.group.subscription) in self.chosen

        return ViewFilter(includes, notification=self.notification, test=chosen if self.chosen else None)


class WaitingEntry(msgspec.Struct, frozen=True):
    """A delivery, with the state of its subscription (`over` if it has ended) and the result of the last attempt.
    `next_ms` is a time after now: of the next attempt, or the deadline of a result; 0 without one."""

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
    """The deliveries that wait longest, and the number of the others. If not `complete`, results of some last attempts
    are missing, because the log of attempts is long. `groups` are the largest ones of all, by endpoint and state of the
    subscription."""

    waiting: tuple[WaitingEntry, ...]
    more: int
    complete: bool
    groups: tuple[DeliveryGroup, ...] = ()


def oldest(
    kafka: KafkaSettings,
    selected: WaitingFilter,
    limit: int,
    control: ControlView | None = None,
    skip: int = 0,
    newest_first: bool = False,
    views: DeliveryViews | None = None,
    within_s: float = 10.0,
) -> WaitingList:
    """The deliveries that wait longest, or shortest, in this order, behind the first `skip`. Subscriptions are looked
    up in `control`, or in the log. `views` are cached for later queries. Last attempts are searched for up to this
    time; with 0 only those that `views` has from an earlier search are shown.

    Raises ExpressionError, ConfigError, InfrastructureError.
    """
    known = control_log.read_control(kafka) if control is None else control
    waiting = Waiting(kafka, views)
    waits, more, counts = waiting.oldest(selected.in_view(kafka, known), limit, skip, newest_first=newest_first)
    waits, complete = waiting.with_last(waits, within_s)
    now_ms = time_ms()
    grouped = Counter[tuple[str, str]]()
    for each, count in counts.items():
        grouped[_endpoint(known, each) or each, _state(known, each, now_ms)] += count
    groups = (DeliveryGroup(where, state, count) for (where, state), count in grouped.most_common(MOST_GROUPS))
    return WaitingList(tuple(_delivery(each, known, now_ms) for each in waits), more, complete, tuple(groups))


def following(
    kafka: KafkaSettings,
    selected: WaitingFilter,
    limit: int,
    after: ViewPlace | None,
    control: ControlView,
    newest_first: bool,
    views: DeliveryViews,
    within_s: float,
) -> tuple[tuple[WaitingEntry, ...], ViewPlace | None]:
    """As `oldest`, the deliveries behind a place; and the place of the last, None if these are all the others."""
    waiting = Waiting(kafka, views)
    waits, place = waiting.following(selected.in_view(kafka, control), limit, after, newest_first=newest_first)
    waits, _ = waiting.with_last(waits, within_s)
    now_ms = time_ms()
    return tuple(_delivery(each, control, now_ms) for each in waits), place


class DeliveryCounts(NamedTuple):
    """Of a subscription: waiting deliveries, and dead letters."""

    pending: int
    dead: int


def counts(kafka: KafkaSettings, subscriptions: Iterable[str], views: DeliveryViews) -> Mapping[str, DeliveryCounts]:
    """The numbers of deliveries of each subscription. `views` are cached for later queries. Raises
    InfrastructureError."""
    with opened(PendingView, kafka, views) as view:
        pending = {each: view.count(each) for each in subscriptions}
    with opened(LettersView, kafka, views) as view:
        return {each: DeliveryCounts(number, view.count(each)) for each, number in pending.items()}


def retry(
    kafka: KafkaSettings,
    selected: WaitingFilter,
    limit: int | None = None,
    control: ControlView | None = None,
    by: Operator | None = None,
    views: DeliveryViews | None = None,
) -> int:
    """Request an attempt of deliveries now, the longest waiting first, up to `limit`; returns their number. A paused or
    suspended subscription gets none before it is resumed. Subscriptions are looked up in `control`, or in the log; `by`
    is the operator, by default the user of this process. Raises as `oldest`."""
    known = control_log.read_control(kafka) if control is None else control
    includes = selected.in_view(kafka, known)  # a refused filter is no operation
    with recorded(kafka, "waiting retry", [change(selected.text())], by) as results:
        requested = Waiting(kafka, views).request_attempts(includes, sys.maxsize if limit is None else limit)
        results.append(f"{requested} requested")
    return requested


def probe(
    kafka: KafkaSettings,
    endpoint: str,
    control: ControlView | None = None,
    by: Operator | None = None,
    views: DeliveryViews | None = None,
) -> None:
    """Request an attempt of the delivery that waits longest for an endpoint, even with an open breaker. Raises NotFound
    if none waits, and as `oldest`."""
    known = control_log.read_control(kafka) if control is None else control
    includes = WaitingFilter(endpoint=endpoint).in_view(kafka, known)
    with recorded(kafka, "waiting probe", [change(endpoint)], by) as results:
        if not Waiting(kafka, views).request_attempts(includes, 1):
            raise NotFound(f"no delivery waits for {endpoint}: a probe is the push of a waiting delivery")
        results.append("1 requested")


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
        next_ms=tries.due_ms if stage in ("in flight", "awaited", "scheduled") else 0,
        error=last.error if last is not None else "",
        detail=last.detail if last is not None else "",
        status=last.status if last is not None else 0,
    )


def _stage(tries: Tries, now_ms: int, held: bool) -> Stage:
    due = tries.is_due(now_ms)
    if tries.number and tries.awaits and not due:
        return "in flight" if tries.in_flight else "awaited"
    if held:
        return "held"
    if not tries.number:
        return "queued"
    return "due" if due else "scheduled"
