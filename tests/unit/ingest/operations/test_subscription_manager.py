"""Renew, Unsubscribe, Pause and Resume, as a client sees them."""

from __future__ import annotations

from arborcast.ingest.settings import GatewaySettings
from arborcast.topic_model.records.control import SecretsResealed, SubscriptionEnded, SubscriptionSuspended, Tombstone
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, live, only_subscription, path_of


def test_pause_and_resume_which_takes_a_suspension_back() -> None:
    parts = GatewayParts()
    path = path_of(parts.post(soap.envelope(soap.subscribe())))
    for operation, paused in (("PauseSubscription", True), ("ResumeSubscription", False)):
        parts.suspensions.apply(SubscriptionSuspended(only_subscription(parts).id, "refused", 1, 2))
        answer = parts.post(soap.envelope(f"<wsnt:{operation}/>"), path)
        assert answer.root.find(f".//{{*}}{operation}Response") is not None
        assert (only_subscription(parts).paused, len(parts.suspensions)) == (paused, paused)


def test_the_end_of_a_subscription_leaves_nothing_behind_whether_or_not_we_have_read_of_it() -> None:
    parts = GatewayParts()
    path = path_of(parts.post(soap.envelope(soap.subscribe())))
    name = only_subscription(parts).id
    # The job and an operator write under keys of their own, and we may not have read that yet.
    parts.control.records += [SubscriptionSuspended(name, "refused", 1, 2), SecretsResealed(name, {})]

    parts.post(soap.envelope("<wsnt:Unsubscribe/>"), path)

    assert live(parts.control.records) == set()


def test_a_subscription_is_renewed_within_the_grace_time_and_with_a_time_to_come_only() -> None:
    parts = GatewayParts(GatewaySettings(expiry_grace_s=60))
    path = path_of(parts.post(soap.envelope(soap.subscribe(termination="PT1M"))))
    answer = parts.post(soap.envelope(soap.renew("2025-01-01T00:00:00Z")), path)
    assert (answer.fault, answer.text("MinimumTime")) == ("UnacceptableTerminationTimeFault", "2026-01-01T00:00:00Z")
    assert len(parts.control.records) == 1
    parts.later(seconds=119)
    assert parts.post(soap.envelope(soap.renew("PT1M")), path).status == 200
    parts.later(seconds=120)
    assert parts.post(soap.envelope(soap.renew("PT1M")), path).fault == "ResourceUnknownFault"


def test_unsubscribe_ends_with_a_reason_and_leaves_nothing() -> None:
    parts = GatewayParts()
    path = path_of(parts.post(soap.envelope(soap.subscribe())))
    identifier = path.rpartition("/")[2]
    answer = parts.post(soap.envelope("<wsnt:Unsubscribe/>"), path)
    assert answer.root.find(".//{*}UnsubscribeResponse") is not None
    assert parts.control.records[1:] == [
        SubscriptionEnded(identifier, "unsubscribed", 1_767_225_600_000),
        *(Tombstone(f"{kind}:{identifier}") for kind in ("sub", "susp", "seal")),
    ]
    assert list(parts.table.subscriptions()) == []
    assert parts.post(soap.envelope("<wsnt:Unsubscribe/>"), path).fault == "ResourceUnknownFault"
