"""Why a subscription has nothing of a notification: nothing was tried, or it was not even asked. Pure."""

from __future__ import annotations

import re
from datetime import datetime
from typing import cast

import msgspec

from dispatch.matching.filters import Conditions, Subject
from dispatch.trace.control import State, When
from dispatch.trace.evidence import Evidence, Row, utc
from dispatch.trace.story import Outcome
from topic_model.notifications import Notification
from topic_model.routing.history import standing
from topic_model.subscriptions import Subscription
from topic_model.topics import TopicPath, parent_of

_EVERY_TOPIC = "every topic (no topic filter)"

_NAMESPACE = re.compile(r"\{[^{}]*\}")


def expression_of(subscription: Subscription) -> str:
    """Its topic filters as they were written."""
    return " and ".join(each.text for each in subscription.topics) or _EVERY_TOPIC


def without_attempts(
    evidence: Evidence, subscription: Subscription, notification: Notification, when: When
) -> tuple[Outcome, str]:
    """Why a subscription whose topics match has no attempt."""
    stood = standing(subscription, False, when.ms)
    if stood == "paused":
        kind = "pull points" if subscription.pull_point else "its kind"
        return "skipped", f"the subscription was paused then, and for {kind} nothing is kept meanwhile"
    if stood == "over":
        return "skipped", f"the subscription's time was over at {moment(subscription.terminates_ms or 0)}"
    if notification.only and notification.only != subscription.id:
        return "skipped", f"it was the topic's current message for the subscription {notification.only} alone"
    refused = _refused_by(subscription, notification)
    if refused:
        return "skipped", refused
    now = evidence.control.now(subscription.id)
    if now is not None and now.subscription is None and not (evidence.batch and evidence.batch.done):
        return "pending", f"the subscription has ended since, at {_ended(now)}, so it will be cancelled"
    if evidence.batch is not None and not evidence.batch.begun:
        return "pending", "the dispatch has not come to it yet"
    if evidence.batch is not None and evidence.batch.done:
        return "pending", "its batch is done, but what became of it is not recorded (any more)"
    return "pending", "it is to be pushed; no outcome has been recorded yet"


def no_match(evidence: Evidence, name: str, when: When) -> tuple[Outcome, str]:
    """Why a subscription was not even considered."""
    states = evidence.control.states.get(name)
    if not states:
        row = evidence.forgotten.get(name)
        return "no match", _of_old(row, when) if row else "there is no such subscription, and there was none lately"
    state = evidence.control.at(name, when)
    if state is None:
        made = next((each.since_ms for each in states if each.subscription), 0)
        later = f"the subscription was made later, at {moment(made)}" if made else ""
        return (
            "no match",
            later or f"all that is known of the subscription is that it ended at {_ended(states[0])}",
        )
    if state.subscription is None:
        return "no match", f"the subscription had ended before, at {moment(state.since_ms)} ({state.reason})"
    if evidence.notification is None:
        return "no match", "the notification itself is not there any more, only what became of it elsewhere"
    return "no match", _other_topic(state.subscription, evidence.notification.topic)


def moment(milliseconds: int) -> str:
    """A time as people read it."""
    return f"{utc(milliseconds):%Y-%m-%d %H:%M:%S} UTC"


def _refused_by(subscription: Subscription, notification: Notification) -> str:
    """The first filter that is not fulfilled, in words; empty when all are."""
    subject = Subject(Conditions(), notification)
    for kind, filters in (("content", subscription.content), ("producer", subscription.producer)):
        for each in filters:
            alone = msgspec.structs.replace(subscription, content=(), producer=())
            alone = msgspec.structs.replace(alone, **{kind: (each,)})
            if not subject.passes(alone):
                where = "payload does" if kind == "content" else "producer's properties do"
                return f"filtered: the {where} not fulfil {each.text}"
    return ""


def _other_topic(subscription: Subscription, topic: TopicPath) -> str:
    """That the topic is not selected, and what would select it."""
    normals = [each.normal for each in subscription.topics]
    said = f"its topic expression {expression_of(subscription)} does not select the topic {topic}"
    if any(_same_name(normal, topic) for normal in normals):
        return f"{said}: that is {' and '.join(normals)}, of another namespace or spelling"
    return f"{said}; {topic} would, and so would {parent_of(topic) or topic}//."


def _same_name(normal: str, topic: str) -> bool:
    """Whether an expression means this topic or a subtree with it, but for namespaces and capitals."""
    plain, path = (_NAMESPACE.sub("", each).casefold() for each in (normal, topic))
    subtree = plain.removesuffix("//.")
    return path == plain or (subtree != plain and (path == subtree or path.startswith(f"{subtree}/")))


def _of_old(row: Row, when: When) -> str:
    """Of a subscription that only the tables remember."""
    created, ended = cast(datetime, row["created_at"]), cast("datetime | None", row["ended_at"])
    if created.timestamp() * 1000 > when.ms:
        return f"the subscription was made later, at {created:%Y-%m-%d %H:%M:%S} UTC"
    if ended is not None and ended.timestamp() * 1000 <= when.ms:
        return f"the subscription had ended before, at {ended:%Y-%m-%d %H:%M:%S} UTC ({row['reason']})"
    return "the subscription was there; what became of the notification is not recorded (any more)"


def _ended(state: State) -> str:
    return f"{moment(state.since_ms)} ({state.reason})"
