"""From what is known of a notification to a story that anyone can read. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import cast

from dispatch.trace.control import When
from dispatch.trace.evidence import AttemptRow, Evidence, utc
from dispatch.trace.story import DeliveryStory, Outcome, Step, Story
from dispatch.trace.unmatched import expression_of, moment, no_match, without_attempts
from topic_model.notifications import UNSTAMPED
from topic_model.subscriptions import Subscription

# How much of the payload a story shows.
_PAYLOAD_CHARACTERS = 2_000


def explain(evidence: Evidence, subscription: str | None = None) -> Story:
    """The story of a notification: with all subscriptions that it concerned, or with the one that was asked about."""
    notification = evidence.notification
    if notification is None and not evidence.attempts:
        return Story(evidence.id, found=False, notes=evidence.notes)
    when = _decided_at(evidence)
    by_subscription = {
        name: list(rows)
        for name, rows in groupby(sorted(evidence.attempts, key=itemgetter("subscription")), itemgetter("subscription"))
    }
    topic = notification.topic if notification else str(evidence.attempts[0]["topic"])
    routes: dict[str, str] = {}
    if notification is not None:
        table = evidence.control.table(when)
        routes = {route.subscription_id: route.expression for route in table.who(notification.topic)}
    names = {*by_subscription, *routes, *evidence.waiting} if subscription is None else {subscription}
    deliveries = [_delivery(evidence, str(name), by_subscription.get(name, []), routes, when) for name in sorted(names)]
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


def _decided_at(evidence: Evidence) -> When:
    """The moment whose subscriptions it belongs to: when it was accepted, as its stamp says.

    Without one, when it was matched: as the batch has written it down; else just before the first attempt; else when it
    was logged, for the batch follows at once.
    """
    notification = evidence.notification
    if notification is not None and notification.control != UNSTAMPED:
        return When(notification.accepted_ms, notification.control, accepted=True)
    if evidence.attempts:
        ms = min(round(_time(row, "started_at").timestamp() * 1000) for row in evidence.attempts)
    else:
        accepted = evidence.notification.accepted_ms if evidence.notification else 0
        ms = max(evidence.logged_ms, accepted)
    if evidence.evaluated is None:
        return When(ms)
    return When(evidence.evaluated.at_ms, evidence.evaluated.control)


def _steps(evidence: Evidence) -> list[Step]:
    """What happened before anybody was pushed to."""
    steps = []
    if evidence.notification is not None:
        publisher = f"from {evidence.notification.publisher}" if evidence.notification.publisher else ""
        steps.append(Step(utc(evidence.notification.accepted_ms), "accepted by the gateway", publisher))
    if evidence.offset >= 0:
        place = f"partition {evidence.partition}, offset {evidence.offset}"
        steps.append(Step(utc(evidence.logged_ms) if evidence.logged_ms else None, "stored in the log", place))
    if evidence.evaluated is not None:
        matched = evidence.evaluated
        wanted = f"{matched.subscriptions} subscription" + "s" * (matched.subscriptions != 1)
        steps.append(Step(utc(matched.at_ms), "matched by the dispatch", f"batch {matched.batch}, for {wanted}"))
        return steps
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
    evidence: Evidence, name: str, rows: Sequence[AttemptRow], routes: Mapping[str, str], when: When
) -> DeliveryStory:
    state = evidence.control.at(name, when)
    known = (state.subscription if state else None) or evidence.control.last(name)
    row = evidence.forgotten.get(name, {})
    rows = sorted(rows, key=itemgetter("started_at", "number"))
    endpoint = known.consumer.address if known else str(rows[-1]["endpoint"] if rows else row.get("endpoint", ""))
    steps = [_attempt_step(each) for each in rows]
    if rows:
        outcome, why = _outcome(evidence, name, known, rows[-1])
    elif name in evidence.waiting:
        outcome, why = "waiting", _waits(evidence, name, endpoint, evidence.waiting[name])
    elif name in routes and known is not None and evidence.notification is not None:
        outcome, why = without_attempts(evidence, known, evidence.notification, when)
    else:
        outcome, why = no_match(evidence, name, when)
    expression = expression_of(known) if known else routes.get(name) or str(row.get("expression", ""))
    return DeliveryStory(name, endpoint, expression, outcome, why, steps)


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


def _outcome(evidence: Evidence, name: str, known: Subscription | None, row: AttemptRow) -> tuple[Outcome, str]:
    """How it stands after the last row."""
    detail = str(row["detail"]) or str(row["error"])
    match row["state"]:
        case "delivered" if known is not None and known.pull_point:
            return "delivered", "it was put into the subscription's pull point, where clients fetch it"
        case "delivered":
            return "delivered", f"the receiver took it at attempt {row['number']}"
        case "parked":
            due = cast("datetime | None", row.get("next_at"))
            return "waiting", f"{_waits(evidence, name, str(row['endpoint']), due)}: {detail}"
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


def _waits(evidence: Evidence, name: str, endpoint: str, due: datetime | None) -> str:
    """What a delivery that is put aside waits for, as things stand now."""
    now = evidence.control.now(name)
    if now is not None and now.subscription is None:
        return f"the subscription has ended since, at {moment(now.since_ms)} ({now.reason}), so it will be cancelled"
    suspended = evidence.control.suspensions.get(name)
    if suspended is not None:
        return (
            f"it is kept until somebody resumes the subscription, which is suspended since {moment(suspended.at_ms)} "
            f"({suspended.reason})"
        )
    if now is not None and now.subscription is not None and now.subscription.paused:
        return "it is kept until the subscription, which is paused, is resumed"
    again = f"it is tried again at {due:%Y-%m-%d %H:%M:%S} UTC" if due else "it is tried when its turn comes"
    health = evidence.endpoints.get(endpoint, {})
    if health.get("breaker") == "open":
        since = f"{_time(health, 'at'):%Y-%m-%d %H:%M:%S} UTC"
        return f"{again}; since {since} its endpoint, which did not answer, is only probed"
    return again


def _time(row: AttemptRow, column: str) -> datetime:
    return cast(datetime, row[column])
