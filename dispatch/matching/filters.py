"""Who gets a notification: those whom it belongs to by its topic, and whose content and producer filters it fulfils.

Conditions are compiled once per worker. A payload is parsed at most once per notification, and only when a subscription
that matched has a content filter; equal conditions of many subscriptions are evaluated once.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict

from topic_model.conditions import Condition, Document, Unanswerable, compile_condition, parse_document
from topic_model.errors import ConditionError
from topic_model.notifications import Notification
from topic_model.routing import Found, Recipients
from topic_model.subscriptions import Subscription, XPathFilter

logger = logging.getLogger(__name__)

# A compiled condition has about 5 kB.
_MAX_CONDITIONS = 10_000

# Each condition that fails is logged once; the rest is counted.
_MAX_LOGGED = 1_000

_WSNT = "http://docs.oasis-open.org/wsn/b-2"
_NO_PRODUCER = f'<wsnt:NotificationProducerRP xmlns:wsnt="{_WSNT}"/>'.encode()
_PRODUCER_BEGIN = f'<wsnt:NotificationProducerRP xmlns:wsnt="{_WSNT}">'.encode()
_PRODUCER_END = b"</wsnt:NotificationProducerRP>"

_Key = tuple[str, str, frozenset[tuple[str, str]]]


def producer_properties(notification: Notification) -> bytes:
    """The document that producer filters look at: a NotificationProducerRP with what the publisher said of itself, its
    wsnt:ProducerReference with reference parameters and metadata, as it was sent."""
    if not notification.producer:
        return _NO_PRODUCER
    return _PRODUCER_BEGIN + notification.producer + _PRODUCER_END


class Conditions:
    """What a worker keeps: compiled conditions, and how many had no answer."""

    def __init__(self, capacity: int = _MAX_CONDITIONS) -> None:
        self._capacity = capacity
        self._compiled: OrderedDict[_Key, Condition | None] = OrderedDict()
        self._logged: set[str] = set()
        self.unanswered: Counter[str] = Counter()
        """Why evaluations had no answer, and how often; without an answer a notification does not match."""

    def get(self, expression: XPathFilter, key: _Key) -> Condition | None:
        """The compiled condition; None when it cannot be compiled (it was accepted by another version)."""
        if key in self._compiled:
            self._compiled.move_to_end(key)
            return self._compiled[key]
        try:
            condition = compile_condition(expression)
        except ConditionError as error:
            self.note("illegal", str(error))
            condition = None
        self._compiled[key] = condition
        if len(self._compiled) > self._capacity:
            self._compiled.popitem(last=False)
        return condition

    def note(self, why: str, message: str) -> None:
        """Count an evaluation without an answer."""
        self.unanswered[why] += 1
        if message not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(message)
            logger.warning("a filter is taken as not fulfilled: %s", message)


class Subject:
    """One notification, asked about the filters of those who want its topic."""

    def __init__(self, conditions: Conditions, notification: Notification) -> None:
        self._conditions = conditions
        self._notification = notification
        self._documents: dict[str, Document | None] = {}
        self._answers: dict[tuple[str, _Key], bool] = {}

    def passes(self, subscription: Subscription) -> bool:
        """Whether all its filters are fulfilled."""
        return all(self._holds("payload", each) for each in subscription.content) and all(
            self._holds("producer", each) for each in subscription.producer
        )

    def _holds(self, kind: str, expression: XPathFilter) -> bool:
        key = (expression.dialect, expression.text, frozenset(expression.namespaces.items()))
        answer = self._answers.get((kind, key))
        if answer is None:
            answer = self._answers[kind, key] = self._evaluate(kind, expression, key)
        return answer

    def _evaluate(self, kind: str, expression: XPathFilter, key: _Key) -> bool:
        condition = self._conditions.get(expression, key)
        document = self._document(kind) if condition is not None else None
        if condition is None or document is None:
            return False
        try:
            return condition.holds(document)
        except Unanswerable as error:
            self._conditions.note("unanswerable", str(error))
            return False

    def _document(self, kind: str) -> Document | None:
        if kind not in self._documents:
            data = self._notification.payload if kind == "payload" else producer_properties(self._notification)
            try:
                self._documents[kind] = parse_document(data)
            except Unanswerable as error:
                self._conditions.note("unreadable", f"the {kind} of topic {self._notification.topic}: {error}")
                self._documents[kind] = None
        return self._documents[kind]


def wanting(recipients: Recipients, conditions: Conditions, notification: Notification) -> Found:
    """Who gets a notification. The sink delivers by this, the audit and the trace judge by it."""
    found = recipients.of(notification)
    for part in found:
        for each in part:
            if each.content or each.producer:
                return _passing(found, Subject(conditions, notification))
    return found


def _passing(found: Found, subject: Subject) -> Found:
    there, ended = ([each for each in part if subject.passes(each)] for part in found)
    return Found(there, ended)
