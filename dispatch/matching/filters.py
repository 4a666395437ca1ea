"""Content and producer filters of the subscriptions that match by topic.

Conditions are compiled once per worker. A payload is parsed at most once per notification, and only for a matching
subscription with a content filter; equal conditions are evaluated once.

The conditions of one owner, and of all, have a budget per notification, checked by an estimate before evaluation.
Subscriptions beyond it are suspended, and their possible matches are parked unevaluated.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from arborcast.core.errors import ConditionError
from arborcast.core.recent import Recent
from arborcast.dispatch.delivery.capacity import scopes_of
from arborcast.topic_model.expressions.conditions import (
    PER_MS,
    Condition,
    Document,
    EvaluationError,
    compile_condition,
    parse_document,
)
from arborcast.topic_model.namespaces import WSNT
from arborcast.topic_model.records.notifications import Notification, type_of
from arborcast.topic_model.records.peers import is_forwarded
from arborcast.topic_model.routing import Found, Recipients
from arborcast.topic_model.subscriptions import Subscription, XPathFilter

logger = logging.getLogger(__name__)

# Bytes of compiled conditions, twice. One has about 5 kB, more if its text is long.
_COMPILED = 32 * 1024 * 1024
_EACH, _EACH_CHARACTER = 5_000, 10

# Bytes of the conditions and topics whose failure was logged in the last hour or two, twice.
_LOGGED = 256 * 1024

# The document of producer filters: a NotificationProducerRP with the publisher's wsnt:ProducerReference, unchanged.
_NO_PRODUCER = f'<wsnt:NotificationProducerRP xmlns:wsnt="{WSNT}"/>'.encode()
_PRODUCER_BEGIN = f'<wsnt:NotificationProducerRP xmlns:wsnt="{WSNT}">'.encode()
_PRODUCER_END = b"</wsnt:NotificationProducerRP>"

TOO_MUCH = "its conditions exceed their budget: none was evaluated"

_Key = tuple[str, str, frozenset[tuple[str, str]]]
_Evaluated = tuple[str, _Key]  # of the payload, or of the producer


class Conditions:
    """A worker's compiled conditions."""

    def __init__(self, most: int = _COMPILED) -> None:
        self._compiled: Recent[_Key, tuple[Condition | None]] = Recent(most, age_s=600.0)
        self._logged: Recent[str, bool] = Recent(_LOGGED, age_s=3_600.0)

    def get(self, expression: XPathFilter, key: _Key) -> Condition | None:
        """The compiled condition; None if it cannot be compiled (a gateway with another libxml2 accepted it)."""
        known = self._compiled.get(key)
        if known is not None:
            return known[0]
        try:
            condition = compile_condition(expression)
        except ConditionError as error:
            self.note(expression.text, str(error))
            condition = None
        declared = sum(len(prefix) + len(uri) for prefix, uri in expression.namespaces.items())
        self._compiled.put(key, (condition,), _EACH + _EACH_CHARACTER * len(expression.text) + declared)
        return condition

    def note(self, about: str, message: str) -> None:
        """Log the reason of an evaluation without a result, once for each condition or topic; such a notification does
        not match."""
        if not self._logged.get(about):
            self._logged.put(about, True, len(about))
            logger.warning("a filter counts as not matched: %s", message)


class Subject:
    """One notification and the results of its conditions."""

    def __init__(self, conditions: Conditions, notification: Notification) -> None:
        self._conditions = conditions
        self._notification = notification
        self._type: str | None = None
        self._documents: dict[str, Document | None] = {}
        self._answers: dict[_Evaluated, bool] = {}

    def passes(self, subscription: Subscription) -> bool:
        if subscription.peer is not None and not is_forwarded(self._notification, subscription.peer):
            return False
        if subscription.types:
            self._type = self._type or type_of(self._notification)
            if self._type not in subscription.types:
                return False
        return all(self._holds("payload", each) for each in subscription.content) and all(
            self._holds("producer", each) for each in subscription.producer
        )

    def costs(self, subscription: Subscription) -> dict[_Evaluated, float]:
        found: dict[_Evaluated, float] = {}
        for kind, expressions in (("payload", subscription.content), ("producer", subscription.producer)):
            for expression in expressions:
                key = _key(expression)
                condition = self._conditions.get(expression, key)
                document = self._document(kind) if condition is not None else None
                if condition is not None and document is not None:
                    found[kind, key] = condition.cost(document)
        return found

    def _holds(self, kind: str, expression: XPathFilter) -> bool:
        key = _key(expression)
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
        except EvaluationError as error:
            self._conditions.note(expression.text, str(error))
            return False

    def _document(self, kind: str) -> Document | None:
        if kind not in self._documents:
            producer, data = self._notification.producer, self._notification.subject or self._notification.payload
            if kind == "producer":
                data = _PRODUCER_BEGIN + producer + _PRODUCER_END if producer else _NO_PRODUCER
            try:
                self._documents[kind] = parse_document(data)
            except EvaluationError as error:
                about = f"the {kind} of topic {self._notification.topic}"
                self._conditions.note(about, f"{about}: {error}")
                self._documents[kind] = None
        return self._documents[kind]


def _key(expression: XPathFilter) -> _Key:
    return expression.dialect, expression.text, frozenset(expression.namespaces.items())


@dataclass(frozen=True)
class Allowance:
    """The budget of conditions for one notification, per started 10 kB."""

    all_ms: float
    owner_ms: float

    def of_all(self, notification: Notification) -> float:
        """For all owners together, in the unit of `Condition.cost`."""
        return self.all_ms * PER_MS * _pieces(notification)

    def of_owner(self, notification: Notification) -> float:
        return self.owner_ms * PER_MS * _pieces(notification)


_PIECE = 10_000


def _pieces(notification: Notification) -> int:
    return 1 + len(notification.subject or notification.payload) // _PIECE


def beyond(
    filtered: Sequence[Subscription], costs: Mapping[str, Mapping[_Evaluated, float]], all_: float, owner: float
) -> set[str]:
    """Subscriptions beyond the budget of all, or of an owner. Shared conditions count once. Owners with the least cost
    come first, and of one owner the cheapest conditions, so those beyond are the most expensive ones."""
    every: dict[_Evaluated, float] = {}
    by_owner: defaultdict[str, dict[_Evaluated, float]] = defaultdict(dict)
    for subscription in filtered:
        every.update(costs[subscription.id])
        by_owner[_owner(subscription)].update(costs[subscription.id])
    if sum(every.values()) <= min(all_, owner):
        return set()
    totals = {name: sum(each.values()) for name, each in by_owner.items()}
    in_order = sorted(filtered, key=lambda each: (totals[_owner(each)], sum(costs[each.id].values()), each.id))
    refused: set[str] = set()
    paid: dict[_Evaluated, float] = {}
    paid_by: defaultdict[str, dict[_Evaluated, float]] = defaultdict(dict)
    spent = 0.0
    spent_by: defaultdict[str, float] = defaultdict(float)
    for subscription in in_order:
        name, own_costs = _owner(subscription), costs[subscription.id]
        more = sum(cost for each, cost in own_costs.items() if each not in paid)
        more_of_owner = sum(cost for each, cost in own_costs.items() if each not in paid_by[name])
        if spent + more > all_ or spent_by[name] + more_of_owner > owner:
            refused.add(subscription.id)
            continue
        paid.update(own_costs)
        paid_by[name].update(own_costs)
        spent += more
        spent_by[name] += more_of_owner
    return refused


def _owner(subscription: Subscription) -> str:
    if subscription.owner or not subscription.pushed:
        return subscription.owner or subscription.consumer.address
    return str(scopes_of(subscription.consumer.address)[1][1])


class FilterEvaluator:
    """Evaluates filters within the budget. One for each partition of a batch. `unjudged` subscriptions are not
    evaluated; `costly` are those beyond the budget so far."""

    def __init__(self, conditions: Conditions, allowance: Allowance, unjudged: frozenset[str] = frozenset()) -> None:
        self.costly: set[str] = set()
        self._conditions = conditions
        self._allowance = allowance
        self._unjudged = unjudged
        self._taken: set[str] = set()

    def take_costly(self) -> set[str]:
        """The new `costly` ones since the last call: a resumed subscription must not be reported again."""
        new = self.costly - self._taken
        self._taken |= new
        return new

    def recipients(
        self, notification: Notification, candidates: Iterable[Subscription]
    ) -> list[tuple[Subscription, bool]]:
        """The recipients among the matching subscriptions with True, and those that were not evaluated with False."""
        matched = [each for each in candidates if each.peer is None or is_forwarded(notification, each.peer)]
        if notification.selector:
            # It is about the subscription: filters do not apply.
            return [(each, True) for each in matched]
        if any(each.types for each in matched):
            kind = type_of(notification)
            matched = [each for each in matched if not each.types or kind in each.types]
        filtered = [each for each in matched if each.content or each.producer]
        if not filtered:
            return [(each, True) for each in matched]
        subject = Subject(self._conditions, notification)
        left = [each for each in filtered if each.id not in self._unjudged and each.id not in self.costly]
        if left:
            costs = {each.id: subject.costs(each) for each in left}
            allowance = self._allowance
            self.costly |= beyond(left, costs, allowance.of_all(notification), allowance.of_owner(notification))
        evaluated = {each.id for each in left} - self.costly
        found: list[tuple[Subscription, bool]] = []
        for each in matched:
            if not (each.content or each.producer):
                found.append((each, True))
            elif each.id not in evaluated:
                found.append((each, False))
            elif subject.passes(each):
                found.append((each, True))
        return found


def judged(
    conditions: Conditions, allowance: Allowance, subscription: Subscription, notification: Notification
) -> tuple[bool, float]:
    """Whether a subscription matches a parked unevaluated notification, and the cost; one beyond its owner's budget
    does not match."""
    subject = Subject(conditions, notification)
    cost = sum(subject.costs(subscription).values())
    if cost > allowance.of_owner(notification):
        return False, 0.0
    return subject.passes(subscription), cost


def matching_recipients(recipients: Recipients, conditions: Conditions, notification: Notification) -> Found:
    """The recipients by the rule of the sink without a budget: for audit and trace."""
    found = recipients.of(notification)
    if notification.selector:
        return found
    for part in found:
        for each in part:
            if each.content or each.producer or each.types or each.peer is not None:
                subject = Subject(conditions, notification)
                return Found(*([each for each in part if subject.passes(each)] for part in found))
    return found
