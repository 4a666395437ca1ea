"""How many subscriptions each owner has."""

from __future__ import annotations

from arborcast.topic_model.projections.owners import Owners
from arborcast.topic_model.records.control import SubscriptionEnded, SubscriptionRecord, Tombstone, subscription_key
from arborcast.topic_model.subscriptions import EndpointReference, Subscription


def record(identifier: str, owner: str = "anna", **more: bool) -> SubscriptionRecord:
    return SubscriptionRecord(
        Subscription(
            id=identifier,
            consumer=EndpointReference("http://c.example/"),
            address=f"http://b.example/{identifier}",
            topics=(),
            owner=owner,
            **more,  # type: ignore[arg-type]
        )
    )


def test_each_subscription_counts_once_for_its_present_owner() -> None:
    owners = Owners()
    for each in (record("1"), record("2"), record("1", paused=True), record("3", "bert"), record("4", "")):
        owners.apply(each)
    assert [owners.subscriptions(name) for name in ("anna", "bert", "", "carl")] == [2, 1, 0, 0]

    owners.apply(record("2", "bert"))
    assert [owners.subscriptions(name) for name in ("anna", "bert")] == [1, 2]


def test_what_has_ended_counts_no_more_and_leaves_nothing() -> None:
    owners = Owners()
    for each in (
        record("1"),
        SubscriptionEnded("1", "unsubscribed", 0),
        Tombstone(subscription_key("1")),
        record("2"),
        Tombstone(subscription_key("2")),  # after compaction, all that is left
        Tombstone(subscription_key("never")),
    ):
        owners.apply(each)

    assert owners.subscriptions("anna") == 0
    assert vars(owners) == vars(Owners())
