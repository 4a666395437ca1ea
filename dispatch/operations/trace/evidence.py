"""The data of a trace, and the subscriptions at a time: the control log with its times. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from arborcast.topic_model.projections.suspensions import Suspensions
from arborcast.topic_model.records.control import (
    ControlRecord,
    SubscriptionEnded,
    SubscriptionRecord,
    SubscriptionSuspended,
    Tombstone,
    TriggerEnded,
    TriggerRecord,
)
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.routing.history import standing
from arborcast.topic_model.subscriptions import Subscription

# Maximum time from the making of a subscription in the gateway to its record: a later record is not the first one.
_APPEND_MS = 60_000


class PointInTime(NamedTuple):
    """A point in time. `control` is the control log's end at an acceptance (`accepted`) or a match, if known:
    subscriptions change within the milliseconds between it and the first push."""

    ms: int
    control: int | None = None
    accepted: bool = False


@dataclass(frozen=True)
class SubscriptionState:
    """The state of a subscription from a time on. `subscription` None: it had ended, for `reason`."""

    since_ms: int
    subscription: Subscription | None
    reason: str = ""
    offset: int = -1


@dataclass
class ControlHistory:
    """The states of subscriptions over time; topics and suspensions in their current state.

    The log is compacted: of changes older than a day only the last state remains.
    """

    topics: list[ControlRecord] = field(default_factory=list)
    states: dict[str, list[SubscriptionState]] = field(default_factory=dict)
    suspensions: Suspensions = field(default_factory=Suspensions)

    def add(self, record: ControlRecord, at_ms: int, offset: int = -1) -> None:
        """Apply the next record of the log, with its time and place."""
        self.suspensions.apply(record)
        match record:
            case SubscriptionRecord(subscription=subscription) | TriggerRecord(subscription=subscription):
                self.states.setdefault(subscription.id, []).append(SubscriptionState(at_ms, subscription, "", offset))
            case SubscriptionEnded(id=name, reason=reason) | TriggerEnded(id=name, reason=reason):
                self.states.setdefault(name, []).append(SubscriptionState(at_ms, None, reason, offset))
            case Tombstone(subject=("sub" | "trigger", name)):
                states = self.states.get(name, [])
                if states and states[-1].subscription is not None:
                    states.append(SubscriptionState(at_ms, None, "unknown", offset))
            case SubscriptionSuspended():
                pass
            case _:
                self.topics.append(record)

    def at(self, name: str, when: PointInTime) -> SubscriptionState | None:
        """The state of a subscription at a moment; None before its creation, or if it is unknown.

        If the states of that time have been compacted away, the next known one is used; for an acceptance also if
        another gateway had made the subscription just before.
        """
        states = self.states.get(name, [])
        if when.control is None:
            position = bisect.bisect_right([state.since_ms for state in states], when.ms)
        else:
            position = bisect.bisect_left([state.offset for state in states], when.control)
        if position:
            return states[position - 1]
        first = states[0] if states else None
        if first is None or first.subscription is None:
            return None
        if when.accepted:
            later = standing(first.subscription, True, when.ms) == "made later"
            return None if later else first
        created_ms = first.subscription.created_ms
        compacted = 0 < created_ms < first.since_ms - _APPEND_MS
        return first if compacted and created_ms <= when.ms else None

    def now(self, name: str) -> SubscriptionState | None:
        """The last known state of a subscription."""
        return next(reversed(self.states.get(name, [])), None)

    def last(self, name: str) -> Subscription | None:
        """The last version of the subscription, ended or not."""
        return next((each.subscription for each in reversed(self.states.get(name, [])) if each.subscription), None)

    def table(self, when: PointInTime) -> RoutingTable:
        """The routing table with the subscriptions of that time and the current topics."""
        table = RoutingTable(remembered_answers=16)
        for record in self.topics:
            table.apply(record)
        for name in self.states:
            state = self.at(name, when)
            if state is not None and state.subscription is not None:
                table.apply(SubscriptionRecord(state.subscription))
        return table


Row = Mapping[str, object]
"""A row of a table, by column."""


Progress = Literal["waits", "matched", "settled"]
"""How far the dispatch is with a notification."""


@dataclass(frozen=True)
class MatchedBy:
    """The evaluation of a notification: its time and batch, and the number of recipients; `thinned` others got another
    one within their minimum interval, and `passed` are those with such an interval that got this one. `control` is the
    position in the control log."""

    at_ms: int
    batch: int
    control: int
    subscriptions: int
    thinned: int = 0
    passed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """All records of one notification. `logged_ms` is the timestamp of its Kafka record (of the broker), 0 if unknown.

    `attempts` are in order of time. `waiting` are the subscriptions with a row in the table of retries, with the time
    of the next attempt. `forgotten` are rows of the table of subscriptions, for those no longer in the control log;
    `endpoints` the latest rows of endpoint health. `instead` are the notifications delivered instead of this one within
    a minimum interval. `pulled` are the last steps in pull points, by subscription. `notes` name unavailable sources.
    `now` is the time of the trace: an attempt that was due before is not announced.
    """

    id: str
    notification: Notification | None
    control: ControlHistory
    logged_ms: int = 0
    partition: int = -1
    offset: int = -1
    progress: Progress | None = None
    evaluated: MatchedBy | None = None
    attempts: Sequence[Row] = ()
    waiting: Mapping[str, datetime | None] = field(default_factory=dict)
    forgotten: Mapping[str, Row] = field(default_factory=dict)
    endpoints: Mapping[str, Row] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)
    pulled: Mapping[str, Step] = field(default_factory=dict)
    notes: Sequence[str] = ()
    now: datetime | None = None


def utc(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


Outcome = Literal["delivered", "waiting", "dead", "expired", "cancelled", "dropped", "skipped", "pending", "no match"]
"""The outcome for one subscription: the final states of a delivery; `waiting` for another attempt; `skipped`: its topic
matched, but it did not get the notification; `pending`: not decided yet; `no match`: not selected."""


@dataclass(frozen=True)
class Step:
    """An event, as text. `at` None: at an unknown time. `where` is an endpoint, or a place in the log."""

    at: datetime | None
    what: str
    detail: str = ""
    where: str = ""


@dataclass(frozen=True)
class DeliveryExplanation:
    """One subscription: the matching expression, the events, and the outcome with its reason."""

    subscription: str
    endpoint: str
    expression: str
    outcome: Outcome
    why: str
    steps: Sequence[Step] = ()


@dataclass(frozen=True)
class Explanation:
    """The explanation of a notification. `cause` is the notification that made a trigger publish it, empty for none."""

    notification: str
    found: bool
    topic: str = ""
    publisher: str = ""
    cause: str = ""
    payload: str = ""
    traceparent: str = ""
    steps: Sequence[Step] = ()
    deliveries: Sequence[DeliveryExplanation] = ()
    notes: Sequence[str] = ()
