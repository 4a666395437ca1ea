"""Subscriptions as an operator sees them."""

from __future__ import annotations

import msgspec

from arborcast.admin.subscriptions import conditions_of
from arborcast.topic_model.subscriptions import DeliveryPolicy, EndpointReference, Subscription


def test_what_else_must_be_fulfilled_beyond_the_topic_is_said_in_words() -> None:
    subscription = Subscription("s", EndpointReference("http://r/"), types=("{urn:t}a", "{urn:t}b"))
    assert conditions_of(subscription) == "type: {urn:t}a or {urn:t}b"
    apart = msgspec.structs.replace(subscription, types=(), policy=DeliveryPolicy(interval_ms=1_500))
    assert conditions_of(apart) == "1.5 s apart"
