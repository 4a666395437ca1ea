"""Control records are read as they were written, under the key of their subject."""

from __future__ import annotations

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.topic_model.publishers import Registration
from arborcast.topic_model.records.control import (
    ControlRecord,
    PullPointEnded,
    PullPointRecord,
    RegistrationEnded,
    RegistrationRecord,
    SecretsResealed,
    SubscriptionEnded,
    SubscriptionRecord,
    SubscriptionSuspended,
    Tombstone,
    TopicPolicy,
    TopicRecord,
    TopicRemoved,
    TriggerEnded,
    TriggerRecord,
    decode,
    encode,
    ending_trigger,
    key_of,
    subscription_of,
)
from arborcast.topic_model.subscriptions import DeliveryPolicy, EndpointReference, Subscription, TopicFilter
from arborcast.topic_model.topics import TopicPath
from tests.support.routing import make_trigger

A = TopicPath("{http://example.org/t}Überwachung/b")
RICH = Subscription(
    "s1",
    EndpointReference("http://c/", ("<p xmlns='urn:p'>1</p>",), ("<m/>",)),
    topics=(TopicFilter("urn:d", "t:a", "{urn:t}a", {"t": "urn:t"}),),
    policy=DeliveryPolicy("strict", maximum_attempts=3),
    terminates_ms=1_700_000_000_000,
    paused=True,
)


@pytest.mark.parametrize(
    ("record", "key", "subscription"),
    [
        (TopicRecord(A), f"topic:{A}", None),
        (TopicRecord(A, "C1", ("{urn:m}M",), True, TopicPolicy(True, 3, "local", ("p1", "p2"))), f"topic:{A}", None),
        (TopicRemoved(A), f"topic:{A}", None),
        (SubscriptionRecord(Subscription("s1", EndpointReference("http://c/"))), "sub:s1", "s1"),
        (SubscriptionRecord(RICH), "sub:s1", "s1"),
        (SubscriptionEnded("s1", "expired", 5), "sub:s1", "s1"),
        (SubscriptionSuspended("s1", "connect", 3, 5), "susp:s1", None),
        (SecretsResealed("s1", {"k1:AAAA": "k2:BBBB"}), "seal:s1", None),
        (Tombstone("sub:s1"), "sub:s1", "s1"),
        (PullPointRecord("p", "http://h/p", "orders", 5), "pull:p", None),
        (PullPointEnded("p", "destroyed", 6), "pull:p", None),
        (RegistrationRecord(Registration("r1", "http://b/r1")), "pub:r1", None),
        (RegistrationEnded("r1", "expired", 1), "pub:r1", None),
        (TriggerRecord(make_trigger("one", "on//.", "to")), "trigger:one", "one"),
        (TriggerEnded("one", "removed", 1), "trigger:one", "one"),
        (Tombstone("trigger:one"), "trigger:one", "one"),
    ],
)
def test_round_trip_under_the_key(record: ControlRecord, key: str, subscription: str | None) -> None:
    encoded_key, value = encode(record)
    assert encoded_key == key_of(record).encode() == key.encode()
    assert (value is None) == isinstance(record, Tombstone)
    assert b'"target"' not in (value or b""), "a trigger's target follows from its topic"
    assert decode(encoded_key, value) == record
    if subscription is not None:
        assert subscription_of(record) == subscription


def test_the_end_of_a_trigger_ends_its_suspension() -> None:
    assert Tombstone("susp:one") in ending_trigger("one", "removed", 1)


@pytest.mark.parametrize(("value", "error"), [(None, UnicodeDecodeError), (b"broken", InfrastructureError)])
def test_keys_that_are_not_utf_8(value: bytes | None, error: type[Exception]) -> None:
    with pytest.raises(error):
        decode(b"\xff", value)
