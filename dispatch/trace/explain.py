"""From what is known of a notification to a story that anyone can read. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import cast

import msgspec

from dispatch.matching.filters import Conditions, Subject
from dispatch.trace.evidence import AttemptRow, Evidence, utc
from dispatch.trace.story import DeliveryStory, Outcome, Step, Story
from topic_model.notifications import Notification
from topic_model.subscriptions import Subscription

# How much of the payload a story shows.
_PAYLOAD_CHARACTERS = 2_000

_EVERY_TOPIC = "every topic (no topic filter)"


def explain(evidence: Evidence, subscription: str | None = None) -> Story:
    """The story of a notification: with all subscriptions that it concerned, or with the one that was asked about."""
    notification = evidence.notification
    if notification is None and not evidence.attempts:
        return Story(evidence.id, found=False, notes=evidence.notes)
    when_ms = _matched_ms(evidence)
    by_subscription = {
        name: list(rows)
        for name, rows in groupby(sorted(evidence.attempts, key=itemgetter("subscription")), itemgetter("subscription"))
    }
    topic = notification.topic if notification else str(evidence.attempts[0]["topic"])
    routes: dict[str, str] = {}
    if notification is not None:
        table = evidence.control.table(when_ms)
        routes = {route.subscription_id: route.expression for route in table.who(notification.topic)}
    names = {*by_subscription, *routes, *evidence.waiting} if subscription is None else {subscription}
    deliveries = [
        _delivery(evidence, str(name), by_subscription.get(name, []), routes, when_ms) for name in sorted(names)
    ]
    return Story(
        evidence.id,
        found=True,
        topic=topic,
        publisher=notification.publisher if notification else "",
        payload=notification.payload.decode(errors="replace")[:_PAYLOAD_CHARACTERS] if notification else "",
        traceparent=notification.traceparent if notification else "",
        steps=_steps(evidence),
        deliveries=deliveries,
        notes=evidence.notes,
    )


def _matched_ms(evidence: Evidence) -> int:
    """When it was matched: just before the first attempt, else when it was logged; the batch follows at once."""
    if evidence.attempts:
        return min(round(_time(row, "started_at").timestamp() * 1000) for row in evidence.attempts)
    accepted = evidence.notification.accepted_ms if evidence.notification else 0
    return max(evidence.logged_ms, accepted)


def _steps(evidence: Evidence) -> list[Step]:
    """What happened before anybody was matched."""
    steps = []
    if evidence.notification is not None:
        publisher = f"from {evidence.notification.publisher}" if evidence.notification.publisher else ""
        steps.append(Step(utc(evidence.notification.accepted_ms), "accepted by the gateway", publisher))
    if evidence.offset >= 0:
        place = f"partition {evidence.partition}, offset {evidence.offset}"
        steps.append(Step(utc(evidence.logged_ms) if evidence.logged_ms else None, "stored in the log", place))
    batches = sorted({int(cast(int, row["batch"])) for row in evidence.attempts} - {-1})
    if batches:
        steps.append(Step(None, "taken by the dispatch", "batch " + ", ".join(map(str, batches))))
    elif evidence.batch is not None:
        number = "an earlier batch" if evidence.batch.number is None else f"batch {evidence.batch.number}"
        if not evidence.batch.begun:
            steps.append(Step(None, "waits for the dispatch", "no batch has taken it yet"))
        else:
            state = "which is done" if evidence.batch.done else "which is under way"
            steps.append(Step(None, "taken by the dispatch", f"{number}, {state}"))
    return steps


def _delivery(
    evidence: Evidence, name: str, rows: Sequence[AttemptRow], routes: Mapping[str, str], when_ms: int
) -> DeliveryStory:
    state = evidence.control.at(name, when_ms)
    known = (state.subscription if state else None) or evidence.control.last(name)
    rows = sorted(rows, key=itemgetter("started_at", "number"))
    endpoint = known.consumer.address if known else str(rows[-1]["endpoint"]) if rows else ""
    steps = [_attempt_step(row) for row in rows]
    if rows:
        outcome, why = _outcome(rows[-1])
    elif name in evidence.waiting:
        outcome, why = "waiting", _due(evidence.waiting[name])
    elif name in routes and known is not None and evidence.notification is not None:
        outcome, why = _without_attempts(evidence, known, evidence.notification, when_ms)
    else:
        outcome, why = _no_match(evidence, name, when_ms)
    expression = _expression(known) if known else routes.get(name, "")
    return DeliveryStory(name, endpoint, expression, outcome, why, steps)


def _expression(subscription: Subscription) -> str:
    return " and ".join(each.text for each in subscription.topics) or _EVERY_TOPIC


def _attempt_step(row: AttemptRow) -> Step:
    status, error, detail = row["status"], row["error"], str(row["detail"])
    if not row["push"]:
        what = {"parked": "put aside", "cancelled": "cancelled", "expired": "expired", "dead": "given up"}.get(
            str(row["state"]), str(row["state"])
        )
        return Step(_time(row, "started_at"), what, detail or str(error))
    answer = f"HTTP {status}" if status else "no answer"
    took = f"after {cast(float, row['duration_ms']):.0f} ms"
    company = f", together with {cast(int, row['messages']) - 1} others" if cast(int, row["messages"]) > 1 else ""
    trouble = f" ({error}: {detail})" if error and detail not in ("", f"HTTP {status}") else f" ({error})" * bool(error)
    return Step(
        _time(row, "started_at"), f"attempt {row['number']}: {answer} {took}", f"to {row['endpoint']}{company}{trouble}"
    )


def _outcome(row: AttemptRow) -> tuple[Outcome, str]:
    """How it stands after the last row."""
    detail = str(row["detail"]) or str(row["error"])
    match row["state"]:
        case "delivered":
            return "delivered", f"the receiver took it at attempt {row['number']}"
        case "parked":
            return "waiting", f"{_due(cast('datetime | None', row.get('next_at')))}: {detail}"
        case "dead" if row["error"] == "address":
            return "dead", f"not permitted, kept as a dead letter: {detail}"
        case "dead":
            number = cast(int, row["number"])
            attempts = f"{number} attempt" + "s" * (number != 1)
            return "dead", f"given up after {attempts}, kept as a dead letter: {detail}"
        case "expired":
            return "expired", f"it became too old: {detail}"
        case _:
            return "cancelled", f"the subscription is over: {detail}"


def _due(at: datetime | None) -> str:
    return f"it is tried again at {at:%Y-%m-%d %H:%M:%S} UTC" if at else "it is tried when its turn comes"


def _without_attempts(
    evidence: Evidence, subscription: Subscription, notification: Notification, when_ms: int
) -> tuple[Outcome, str]:
    """Why a subscription whose topics match has no attempt."""
    if subscription.paused:
        return "skipped", "the subscription was paused then"
    if subscription.expired(when_ms):
        return "skipped", f"the subscription's time was over at {_moment(subscription.terminates_ms or 0)}"
    if notification.only and notification.only != subscription.id:
        return "skipped", f"it was the topic's current message for the subscription {notification.only} alone"
    refused = _refused_by(subscription, notification)
    if refused:
        return "skipped", refused
    if evidence.batch is not None and not evidence.batch.begun:
        return "pending", "the dispatch has not come to it yet"
    if evidence.batch is not None and evidence.batch.done:
        return "pending", "its batch is done, but what became of it is not recorded (any more)"
    return "pending", "it is to be pushed; no outcome has been recorded yet"


def _refused_by(subscription: Subscription, notification: Notification) -> str:
    """The first filter that is not fulfilled, in words; empty when all are."""
    subject = Subject(Conditions(), notification)
    for kind, filters in (("content", subscription.content), ("producer", subscription.producer)):
        for each in filters:
            alone = msgspec.structs.replace(subscription, content=(), producer=())
            alone = msgspec.structs.replace(alone, **{kind: (each,)})
            if not subject.passes(alone):
                where = "payload" if kind == "content" else "producer's properties"
                return f"filtered: the {where} do not fulfil {each.text}".replace("payload do", "payload does")
    return ""


def _no_match(evidence: Evidence, name: str, when_ms: int) -> tuple[Outcome, str]:
    """Why a subscription was not even considered."""
    states = evidence.control.states.get(name)
    if not states:
        return "no match", "there is no such subscription, and there was none lately"
    state = evidence.control.at(name, when_ms)
    if state is None:
        return "no match", f"the subscription was made later, at {_moment(states[0].since_ms)}"
    if state.subscription is None:
        return "no match", f"the subscription had ended before, at {_moment(state.since_ms)} ({state.reason})"
    if evidence.notification is None:
        return "no match", "the notification itself is not there any more, only what became of it elsewhere"
    topic = evidence.notification.topic
    return "no match", f"its topic expression {_expression(state.subscription)} does not select the topic {topic}"


def _moment(milliseconds: int) -> str:
    return f"{utc(milliseconds):%Y-%m-%d %H:%M:%S} UTC"


def _time(row: AttemptRow, column: str) -> datetime:
    return cast(datetime, row[column])
