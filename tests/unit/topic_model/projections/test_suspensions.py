from __future__ import annotations

from arborcast.topic_model.projections.suspensions import Suspensions
from arborcast.topic_model.records.control import (
    SubscriptionEnded,
    SubscriptionRecord,
    SubscriptionSuspended,
    Tombstone,
    subscription_key,
    suspension_key,
)
from arborcast.topic_model.subscriptions import EndpointReference, Subscription

SUSPENDED = SubscriptionSuspended("s", "connect: refused", 10, 99)


def folded(*records: object) -> Suspensions:
    suspensions = Suspensions()
    for record in records:
        suspensions.apply(record)  # type: ignore[arg-type]
    return suspensions


def test_a_suspension_holds_until_it_is_taken_back() -> None:
    suspensions = folded(SUSPENDED)
    assert "s" in suspensions
    assert suspensions.ids() == {"s"}
    assert (suspensions.get("s"), list(suspensions)) == (SUSPENDED, [SUSPENDED])

    suspensions.apply(Tombstone(suspension_key("s")))
    suspensions.apply(Tombstone(suspension_key("s")))

    assert "s" not in suspensions
    assert (suspensions.get("s"), len(suspensions)) == (None, 0)


def test_who_holds_a_subscription() -> None:
    active = Subscription("s", EndpointReference("http://r/"))
    paused = Subscription("s", EndpointReference("http://r/"), paused=True)

    assert [folded().state_of(each) for each in (active, paused)] == ["active", "paused"]
    assert [folded(SUSPENDED).state_of(each) for each in (active, paused)] == ["suspended", "suspended"]


def test_it_has_expired_when_its_time_is_over_whoever_held_it() -> None:
    subscription = Subscription("s", EndpointReference("http://r/"), paused=True, terminates_ms=1_000)
    for suspensions in (folded(), folded(SUSPENDED)):
        assert suspensions.state_of(subscription, 999) != "expired"
        assert suspensions.state_of(subscription, 1_000) == "expired"
    assert folded().state_of(Subscription("s", EndpointReference("http://r/")), 1_000) == "active"


def test_what_is_written_of_the_subscription_meanwhile_does_not_undo_it() -> None:
    assert "s" in folded(SUSPENDED, SubscriptionRecord(Subscription("s", EndpointReference("http://r/"))))


def test_a_subscription_that_is_over_is_not_suspended() -> None:
    assert len(folded(SUSPENDED, SubscriptionEnded("s", "unsubscribed", 5))) == 0
    assert len(folded(SUSPENDED, Tombstone(subscription_key("s")))) == 0
