"""Equal parts of a million subscriptions, kept once.

Subscriptions decoded from the log have a copy of everything: dialect, namespaces, policy, consumer. Here they are
rebuilt from parts that were seen before, which halves them. What was seen is forgotten wholesale when it becomes too
much, so nothing of an ended subscription stays for long, and a missed chance costs memory only.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

from topic_model.subscriptions import (
    DEFAULT_POLICY,
    DeliveryPolicy,
    EndpointReference,
    Subscription,
    TopicFilter,
    XPathFilter,
)

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")

_LIMIT = 16_384  # parts remembered; a few megabytes at most


class Sharing:
    """A bounded memory of parts. Nothing depends on what it still knows."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._namespaces: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
        self._consumers: dict[EndpointReference, EndpointReference] = {}
        self._policies: dict[DeliveryPolicy, DeliveryPolicy] = {DEFAULT_POLICY: DEFAULT_POLICY}

    def compact(self, subscription: Subscription, like: Subscription | None = None) -> Subscription:
        """An equal subscription from shared parts; `like` is one of the same selector, if there is any."""
        if like is not None and like.topics == subscription.topics:
            topics = like.topics
        else:
            topics = tuple([self._topic(topic) for topic in subscription.topics])
        return Subscription(
            id=subscription.id,
            consumer=_shared(self._consumers, subscription.consumer),
            address=subscription.address,
            topics=topics,
            content=tuple([self._xpath(each) for each in subscription.content]),
            producer=tuple([self._xpath(each) for each in subscription.producer]),
            form=subscription.form,
            soap=subscription.soap,
            addressing=subscription.addressing,
            policy=_shared(self._policies, subscription.policy),
            created_ms=subscription.created_ms,
            terminates_ms=subscription.terminates_ms,
            paused=subscription.paused,
            owner=_shared(self._texts, subscription.owner),
            pull_point=subscription.pull_point,
            protection=subscription.protection,
        )

    def _topic(self, topic: TopicFilter) -> TopicFilter:
        text = topic.normal if topic.text == topic.normal else topic.text
        dialect = _shared(self._texts, topic.dialect)
        return TopicFilter(dialect, text, topic.normal, self._declared(topic.namespaces))

    def _xpath(self, each: XPathFilter) -> XPathFilter:
        return XPathFilter(_shared(self._texts, each.dialect), each.text, self._declared(each.namespaces))

    def _declared(self, namespaces: dict[str, str]) -> dict[str, str]:
        return _remembered(self._namespaces, tuple(namespaces.items()), namespaces)


def _shared(known: dict[_K, _K], part: _K) -> _K:
    return _remembered(known, part, part)


def _remembered(known: dict[_K, _V], key: _K, part: _V) -> _V:
    found = known.get(key)
    if found is None:
        if len(known) >= _LIMIT:
            known.clear()
        found = known[key] = part
    return found
