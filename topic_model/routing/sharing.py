"""Equal parts of a million subscriptions, stored once.

Subscriptions decoded from the log have copies of dialect, namespaces, policy and consumer. Rebuilding them from shared
parts halves their memory. The cache of parts is bounded in bytes, since subscribers choose their length, and is cleared
when full; a miss only costs memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import msgspec

from arborcast.topic_model.subscriptions import (
    DEFAULT_POLICY,
    DeliveryPolicy,
    EndpointReference,
    Subscription,
    TopicFilter,
    XPathFilter,
)

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")

_LIMIT = 4 * 1024 * 1024  # bytes of cached parts, of each kind
_EACH = 250  # bytes of a part without its texts


class Sharing:
    """A bounded cache of parts."""

    def __init__(self) -> None:
        self._texts: _Parts[str, str] = _Parts(len)
        self._namespaces: _Parts[tuple[tuple[str, str], ...], dict[str, str]] = _Parts(_length_of_declarations)
        self._consumers: _Parts[EndpointReference, EndpointReference] = _Parts(_length_of_reference)
        self._policies: _Parts[DeliveryPolicy, DeliveryPolicy] = _Parts(lambda _: 0)
        self._policies.shared(DEFAULT_POLICY, DEFAULT_POLICY)

    def compact(self, subscription: Subscription, like: Subscription | None = None) -> Subscription:
        """An equal subscription with shared parts; `like` is one of the same selector, if any."""
        if like is not None and like.topics == subscription.topics:
            topics = like.topics
        else:
            topics = tuple([self._topic(topic) for topic in subscription.topics])
        return msgspec.structs.replace(
            subscription,
            consumer=self._consumers.shared(subscription.consumer, subscription.consumer),
            topics=topics,
            content=tuple([self._xpath(each) for each in subscription.content]),
            producer=tuple([self._xpath(each) for each in subscription.producer]),
            policy=self._policies.shared(subscription.policy, subscription.policy),
            owner=self._texts.shared(subscription.owner, subscription.owner),
            types=tuple([self._texts.shared(each, each) for each in subscription.types]),
        )

    def _topic(self, topic: TopicFilter) -> TopicFilter:
        text = topic.normal if topic.text == topic.normal else topic.text
        dialect = self._texts.shared(topic.dialect, topic.dialect)
        return TopicFilter(dialect, text, topic.normal, self._declared(topic.namespaces))

    def _xpath(self, each: XPathFilter) -> XPathFilter:
        dialect = self._texts.shared(each.dialect, each.dialect)
        return XPathFilter(dialect, each.text, self._declared(each.namespaces))

    def _declared(self, namespaces: dict[str, str]) -> dict[str, str]:
        return self._namespaces.shared(tuple(namespaces.items()), namespaces)


class _Parts(Generic[_K, _V]):
    """Parts of one kind."""

    __slots__ = ("_known", "_left", "_length")

    def __init__(self, length: Callable[[_K], int]) -> None:
        self._length = length
        self._known: dict[_K, _V] = {}
        self._left = _LIMIT

    def shared(self, key: _K, part: _V) -> _V:
        """The first equal part, by default this one."""
        found = self._known.get(key)
        if found is None:
            size = self._length(key) + _EACH
            if size > self._left:
                self._known.clear()
                self._left = _LIMIT
            self._left -= size
            found = self._known[key] = part
        return found


def _length_of_declarations(declared: tuple[tuple[str, str], ...]) -> int:
    return sum(len(prefix) + len(uri) + _EACH for prefix, uri in declared)


def _length_of_reference(reference: EndpointReference) -> int:
    parts = (*reference.reference_parameters, *reference.metadata)
    return len(reference.address) + sum(len(part) + _EACH for part in parts)
