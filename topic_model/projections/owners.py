"""Subscriptions and XPath topic expressions per owner: a fold over the control log. Subscriptions without an owner do
not count."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

from arborcast.topic_model.records.control import ControlRecord, SubscriptionEnded, SubscriptionRecord, Tombstone
from arborcast.topic_model.routing.selectors import has_xpath, selector_of

_K = TypeVar("_K", str, tuple[str, str])


class Owners:
    """The current counts, a function of the last record of each key."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._selectors: dict[str, str] = {}  # by id, those with an XPath
        self._uses: dict[str, Counter[str]] = {}  # by owner, of these selectors

    def apply(self, record: ControlRecord) -> None:
        match record:
            case SubscriptionRecord(subscription=subscription):
                self._remove(subscription.id)
                if subscription.owner:
                    self._owners[subscription.id] = subscription.owner
                    self._counts[subscription.owner] += 1
                    if has_xpath(subscription):
                        selector = self._selectors[subscription.id] = selector_of(subscription)
                        self._uses.setdefault(subscription.owner, Counter())[selector] += 1
            case SubscriptionEnded(id=identifier) | Tombstone(subject=("sub", identifier)):
                self._remove(identifier)

    def subscriptions(self, owner: str) -> int:
        """The number of this owner's subscriptions, including paused and expired ones."""
        return self._counts[owner]

    def xpath_expressions(self, owner: str) -> int:
        """The number of different selectors with an XPath in this owner's subscriptions."""
        return len(self._uses.get(owner, ()))

    def _remove(self, identifier: str) -> None:
        owner = self._owners.pop(identifier, "")
        if owner:
            drop(self._counts, owner)
        selector = self._selectors.pop(identifier, None)
        if selector is not None:
            drop(self._uses[owner], selector)
            if not self._uses[owner]:
                del self._uses[owner]


def drop(counts: Counter[str], owner: str) -> None:
    """Decrease a count, for instance of an owner; a count of 0 is removed."""
    counts[owner] -= 1
    if not counts[owner]:
        del counts[owner]


def discard(sets: dict[_K, set[str]], key: _K, member: str) -> None:
    """Remove a member from the set of this key; an empty set is removed."""
    sets[key].remove(member)
    if not sets[key]:
        del sets[key]
