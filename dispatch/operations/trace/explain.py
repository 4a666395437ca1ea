"""The history of a notification as readable text. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from typing import cast

import msgspec

from arborcast.dispatch.matching.filters import Conditions, Subject
from arborcast.dispatch.operations.trace.evidence import (
    DeliveryExplanation,
    Evidence,
    Explanation,
    Outcome,
    PointInTime,
    Row,
    Step,
    SubscriptionState,
    utc,
)
from arborcast.topic_model.records.notifications import UNSTAMPED, Notification, type_of
from arborcast.topic_model.records.peers import is_datagram, is_forwarded
from arborcast.topic_model.routing.history import standing
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import TopicPath, parent_of

_EVERY_TOPIC = "every topic (no topic filter)"

_NAMESPACE = re.compile(r"\{[^{}]*\}")


def expression_of(subscription: Subscription) -> str:
    """Its topic filters as they were written."""
    return " and ".join(each.text for each in subscription.topics) or _EVERY_TOPIC


def without_attempts(
    evidence: Evidence, subscription: Subscription, notification: Notification, when: PointInTime
) -> tuple[Outcome, str]:
    """The reason why a subscription with a matching topic has no attempt."""
    state_then = standing(subscription, False, when.ms)
    if state_then == "paused":
        timely = subscription.policy.reliability == "timely"
        kind = "pull points" if subscription.pull_point else "timely ones" if timely else "its kind"
        return "skipped", f"the subscription was paused then, and for {kind} nothing is stored meanwhile"
    if state_then == "over":
        return "skipped", f"the subscription's time was over at {moment(subscription.terminates_ms or 0)}"
    if notification.only and notification.only != subscription.id:
        return "skipped", f"it was the topic's current message for the subscription {notification.only} alone"
    refused = _refused_by(subscription, notification)
    if refused:
        return "skipped", refused
    evaluated = evidence.evaluated
    is_thinned = evaluated is not None and evaluated.thinned > 0 and subscription.id not in evaluated.passed
    if subscription.policy.interval_ms and is_thinned:
        return "skipped", _within_interval(subscription, evidence.instead.get(subscription.id))
    now = evidence.control.now(subscription.id)
    if now is not None and now.subscription is None and evidence.progress != "settled":
        return "pending", f"the subscription has ended since, at {_ended(now)}, so it will be cancelled"
    if evidence.progress == "waits":
        return "pending", "not processed yet"
    if evidence.progress == "settled":
        return "pending", "settled; its outcome is not recorded, or no longer"
    return "pending", "to be pushed; no outcome is recorded yet"


def _within_interval(subscription: Subscription, instead: str | None) -> str:
    policy = subscription.policy
    of = "this topic" if policy.interval_per == "topic" else "any topic"
    other = f"{instead} was delivered instead" if instead else "another one was delivered instead"
    return f"omitted: its minimum interval for {of} is {policy.interval_ms / 1000:g} s, and {other}"


def no_match(evidence: Evidence, name: str, when: PointInTime) -> tuple[Outcome, str]:
    """The reason why a subscription was no candidate."""
    states = evidence.control.states.get(name)
    if not states:
        row = evidence.forgotten.get(name)
        return "no match", _of_old(row, when) if row else "there is no such subscription, and there was none lately"
    state = evidence.control.at(name, when)
    if state is None:
        made = next((each.since_ms for each in states if each.subscription), 0)
        later = f"the subscription was created later, at {moment(made)}" if made else ""
        return "no match", later or f"of the subscription only its end is known, at {_ended(states[0])}"
    if state.subscription is None:
        return "no match", f"the subscription had ended before, at {_ended(state)}"
    if evidence.notification is None:
        return "no match", "the notification is no longer stored, only its other deliveries"
    return "no match", _other_topic(state.subscription, evidence.notification.topic)


def moment(milliseconds: int) -> str:
    return f"{utc(milliseconds):%Y-%m-%d %H:%M:%S} UTC"


def _refused_by(subscription: Subscription, notification: Notification) -> str:
    """The first unfulfilled filter, as text; empty without one."""
    if subscription.peer is not None and not is_forwarded(notification, subscription.peer):
        if notification.queue:
            return "a request goes to one of the queue's workers, and to no other engine"
        if subscription.peer.datagrams and is_datagram(notification) != (subscription.peer.datagrams == "only"):
            leaves = "as a datagram" if is_datagram(notification) else "confirmed, not as a datagram"
            return f"not over this link: it goes to {subscription.peer.to} {leaves}"
        origin = f"received over {' '.join(notification.path)}" if notification.path else "published at this engine"
        routing = f", with the routing {notification.distribution}" * bool(notification.distribution)
        return f"not for {subscription.peer.to}: {origin}{routing}"
    if subscription.types and type_of(notification) not in subscription.types:
        return f"filtered: it is of the type {type_of(notification)}, and wanted are {' '.join(subscription.types)}"
    subject = Subject(Conditions(), notification)
    for kind, filters in (("content", subscription.content), ("producer", subscription.producer)):
        for each in filters:
            single = msgspec.structs.replace(subscription, content=(), producer=(), types=())
            single = msgspec.structs.replace(single, **{kind: (each,)})
            if not subject.passes(single):
                where = "payload does" if kind == "content" else "producer's properties do"
                return f"filtered: the {where} not fulfil {each.text}"
    return ""


def _other_topic(subscription: Subscription, topic: TopicPath) -> str:
    """The topic is not selected; with the expressions that would select it."""
    normals = [each.normal for each in subscription.topics]
    details = f"{expression_of(subscription)} doesn't match {topic}"
    if any(_same_name(normal, topic) for normal in normals):
        return f"{details}: {' and '.join(normals)} has another namespace or spelling"
    return f"{details}; {topic} would, and so would {parent_of(topic) or topic}//."


def _same_name(normal: str, topic: str) -> bool:
    """Whether an expression is for this topic or a subtree with it, except for namespaces and capitals."""
    plain, path = (_NAMESPACE.sub("", each).casefold() for each in (normal, topic))
    subtree = plain.removesuffix("//.")
    return path == plain or (subtree != plain and (path == subtree or path.startswith(f"{subtree}/")))


def _of_old(row: Row, when: PointInTime) -> str:
    """The reason for a subscription that only the tables have."""
    created, ended = cast(datetime, row["created_at"]), cast("datetime | None", row["ended_at"])
    if created.timestamp() * 1000 > when.ms:
        return f"the subscription was created later, at {created:%Y-%m-%d %H:%M:%S} UTC"
    if ended is not None and ended.timestamp() * 1000 <= when.ms:
        return f"the subscription had ended before, at {ended:%Y-%m-%d %H:%M:%S} UTC ({row['reason']})"
    return "the subscription existed; the outcome of the notification is not, or no longer, recorded"


def _ended(state: SubscriptionState) -> str:
    return f"{moment(state.since_ms)} ({state.reason})"


# Characters of the payload in an explanation.
_PAYLOAD_CHARACTERS = 2_000


def explain(evidence: Evidence, subscription: str | None = None) -> Explanation:
    """The explanation of a notification: with all its subscriptions, or with the requested one."""
    notification = evidence.notification
    if notification is None and not evidence.attempts:
        return Explanation(evidence.id, found=False, notes=evidence.notes)
    when = _decided_at(evidence)
    by_subscription = {
        name: list(rows)
        for name, rows in groupby(sorted(evidence.attempts, key=itemgetter("subscription")), itemgetter("subscription"))
    }
    topic = notification.topic if notification else str(evidence.attempts[0]["topic"])
    routes: dict[str, str] = {}
    if notification is not None:
        table = evidence.control.table(when)
        routes = {route.subscription.id: route.expression for route in table.routes_to(notification.topic)}
    names = {*by_subscription, *routes, *evidence.waiting} if subscription is None else {subscription}
    deliveries = [_delivery(evidence, str(name), by_subscription.get(name, []), routes, when) for name in sorted(names)]
    return Explanation(
        evidence.id,
        found=True,
        topic=topic,
        publisher=notification.publisher if notification else "",
        cause=notification.cause if notification else "",
        payload=notification.payload.decode(errors="replace")[:_PAYLOAD_CHARACTERS] if notification else "",
        traceparent=notification.traceparent if notification else "",
        steps=_in_order(_steps(evidence), evidence.attempts),
        deliveries=deliveries,
        notes=evidence.notes,
    )


def _decided_at(evidence: Evidence) -> PointInTime:
    """The moment that determines its subscriptions: its acceptance, by its stamp.

    Without a stamp, its match: as recorded by the batch; else just before the first attempt; else when it was logged,
    for the batch follows at once.
    """
    notification = evidence.notification
    if notification is not None and notification.control != UNSTAMPED:
        return PointInTime(notification.accepted_ms, notification.control, accepted=True)
    if evidence.attempts:
        ms = min(round(_time(row, "started_at").timestamp() * 1000) for row in evidence.attempts)
    else:
        accepted = evidence.notification.accepted_ms if evidence.notification else 0
        ms = max(evidence.logged_ms, accepted)
    if evidence.evaluated is None:
        return PointInTime(ms)
    return PointInTime(evidence.evaluated.at_ms, evidence.evaluated.control)


def _steps(evidence: Evidence) -> list[Step]:
    steps = []
    if evidence.notification is not None:
        accepted = evidence.notification
        details = [f"from {accepted.publisher}"] * bool(accepted.publisher)
        details += [f"with priority {accepted.priority}"] * bool(accepted.priority)
        details += [f"by way of {' '.join(accepted.path)}"] * bool(accepted.path)
        details += [f"caused by {accepted.cause}, {accepted.hops} in a row"] * bool(accepted.cause)
        by = "published by a trigger" if accepted.cause else "accepted by the gateway"
        steps.append(Step(utc(accepted.accepted_ms), by, ", ".join(details)))
    if evidence.offset >= 0:
        place = f"partition {evidence.partition}, offset {evidence.offset}"
        steps.append(Step(utc(evidence.logged_ms) if evidence.logged_ms else None, "stored in the log", where=place))
    if evidence.evaluated is not None:
        matched = evidence.evaluated
        recipients = f"{matched.subscriptions} subscription" + "s" * (matched.subscriptions != 1)
        steps.append(Step(utc(matched.at_ms), "matched by the dispatch", f"batch {matched.batch}, for {recipients}"))
        return steps
    batches = sorted({int(cast(int, row["batch"])) for row in evidence.attempts} - {-1})
    if batches:
        steps.append(Step(None, "taken by the dispatch", "batch " + ", ".join(map(str, batches))))
    elif evidence.progress == "waits":
        steps.append(Step(None, "waits for the dispatch", "it is not matched yet"))
    elif evidence.progress is not None:
        state = "which has settled it" if evidence.progress == "settled" else "pushes are in progress"
        steps.append(Step(None, "taken by the dispatch", state))
    return steps


def _in_order(steps: Sequence[Step], attempts: Sequence[Row]) -> list[Step]:
    """Steps with times that do not contradict their order: the match is recorded while pushes are in flight already,
    and machines have different clocks."""
    pushed = [_time(row, "started_at") for row in attempts if cast(int, row["batch"]) >= 0]
    latest = min(pushed, default=datetime.max.replace(tzinfo=UTC))
    ordered: list[Step] = []
    for step in reversed(steps[1:]):
        if step.at is not None:
            latest = max(min(step.at, latest), steps[0].at or step.at)
            step = replace(step, at=latest)
        ordered.append(step)
    return [*steps[:1], *reversed(ordered)]


def _delivery(
    evidence: Evidence, name: str, rows: Sequence[Row], routes: Mapping[str, str], when: PointInTime
) -> DeliveryExplanation:
    state = evidence.control.at(name, when)
    known = (state.subscription if state else None) or evidence.control.last(name)
    row = evidence.forgotten.get(name, {})
    rows = sorted(rows, key=itemgetter("started_at", "number"))
    endpoint = known.consumer.address if known else str(rows[-1]["endpoint"] if rows else row.get("endpoint", ""))
    steps = [_attempt_step(each) for each in rows]
    if name in evidence.pulled:
        steps.append(replace(evidence.pulled[name], where=endpoint))
    if rows:
        outcome, why = _outcome(evidence, name, known, _decisive(rows))
    elif name in evidence.waiting:
        outcome, why = "waiting", _waits(evidence, name, endpoint, evidence.waiting[name])
    elif name in routes and known is not None and evidence.notification is not None:
        outcome, why = without_attempts(evidence, known, evidence.notification, when)
    else:
        outcome, why = no_match(evidence, name, when)
    expression = expression_of(known) if known else routes.get(name) or str(row.get("expression", ""))
    return DeliveryExplanation(name, endpoint, expression, outcome, why, steps)


# Records of an unsettled delivery beside its pushes.
_WAITS = {"redriven": "retried", "reported": "failed, as reported by its receiver", "no-result": "no result in time"}


def _attempt_step(row: Row) -> Step:
    status, error, detail = row["status"], row["error"], str(row["detail"])
    at, where = _time(row, "started_at"), str(row["endpoint"])
    if not row["push"]:
        waits = _WAITS.get(str(error), "queued")
        done = "done, as reported by its receiver" if row["batch"] == -1 else "delivered"
        what = {"parked": waits, "dead": "failed", "delivered": done}.get(str(row["state"]), str(row["state"]))
        return Step(at, what, detail or str(error), where)
    if row["state"] == "delivered" and not status:
        # Into a log of ours: of a pull point, or of notifications.
        return Step(at, "stored", detail, where)
    answer = f"HTTP {status}" if status else "no answer"
    took = f"after {cast(float, row['duration_ms']):.0f} ms"
    company = f"together with {cast(int, row['messages']) - 1} others " if cast(int, row["messages"]) > 1 else ""
    trouble = f"({error}: {detail})" if error and detail not in ("", f"HTTP {status}") else f"({error})" * bool(error)
    return Step(at, f"attempt {row['number']}: {answer} {took}", f"{company}{trouble}".strip(), where)


def _decisive(rows: Sequence[Row]) -> Row:
    """As in the audit, the last final row after a redrive, or else the last row: a clock that was put back dates an end
    before the attempts that failed."""
    redrive = max((at for at, row in enumerate(rows) if row["error"] == "redriven"), default=0)
    return next((row for row in reversed(rows[redrive:]) if row["state"] != "parked"), rows[-1])


def _outcome(evidence: Evidence, name: str, known: Subscription | None, row: Row) -> tuple[Outcome, str]:
    detail = str(row["detail"]) or str(row["error"])
    match row["state"]:
        case "delivered" if known is not None and known.pull_point:
            pulled = evidence.pulled.get(known.id)
            return "delivered", "stored in the pull point of the subscription" + (f"; {pulled.what}" if pulled else "")
        case "delivered" if known is not None and known.trigger is not None:
            what = "its payload" if known.trigger.payload else "the same payload"
            as_ = detail.removeprefix("published ")
            return "delivered", f"the trigger published {what} on {known.trigger.topic} {as_}"
        case "delivered" if not row["push"] and detail:
            return "delivered", f"delivered on attempt {row['number']}: {detail.removeprefix('its receiver ')}"
        case "delivered":
            return "delivered", f"delivered on attempt {row['number']}"
        case "parked" if row["error"] == "later":
            due = cast("datetime | None", row.get("next_at"))
            until = f" by {due:%Y-%m-%d %H:%M:%S} UTC" if due else ""
            return "waiting", f"its receiver accepted it and reports the result{until}; otherwise it is tried again"
        case "parked":
            due = cast("datetime | None", row.get("next_at"))
            return "waiting", f"{_waits(evidence, name, str(row['endpoint']), due)}: {detail}"
        case "dead" if row["error"] == "address":
            return "dead", f"not permitted, kept as a dead letter: {detail}"
        case "dead":
            number = cast(int, row["number"])
            attempts = f"{number} attempt" + "s" * (number != 1)
            return "dead", f"failed after {attempts}, kept as a dead letter: {detail}"
        case "expired":
            return "expired", f"expired: {detail}"
        case "dropped" if row["error"] == "resources":
            return "dropped", f"dropped, backlog limit: {detail}"
        case "dropped":
            return "dropped", f"dropped, the subscription is timely and was not ready: {detail}"
        case "cancelled" if row["error"] in ("hops", "skipped"):
            return "cancelled", detail
        case _:
            return "cancelled", f"the subscription has ended: {detail}"


def _waits(evidence: Evidence, name: str, endpoint: str, due: datetime | None) -> str:
    """What a waiting delivery waits for, in the current state."""
    now = evidence.control.now(name)
    if now is not None and now.subscription is None:
        return f"the subscription has ended since, at {_ended(now)}, so it will be cancelled"
    suspended = evidence.control.suspensions.get(name)
    if suspended is not None:
        return f"held: the subscription is suspended since {moment(suspended.at_ms)} ({suspended.reason})"
    if now is not None and now.subscription is not None and now.subscription.paused:
        return "held: the subscription is paused"
    again = "next attempt due" if due else "queued after earlier messages"
    if due and (evidence.now is None or due > evidence.now):
        again = f"next attempt at {due:%Y-%m-%d %H:%M:%S} UTC"
    health = evidence.endpoints.get(endpoint, {})
    if health.get("breaker") == "open":
        since = f"{_time(health, 'at'):%Y-%m-%d %H:%M:%S} UTC"
        return f"{again}; the breaker of its endpoint is open since {since}"
    return again


def _time(row: Row, column: str) -> datetime:
    return cast(datetime, row[column])
