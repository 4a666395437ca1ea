"""Renew, Unsubscribe, Pause, Resume and expiry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from arborcast.ingest.operations import subscription_manager
from arborcast.ingest.operations.subscription_manager import end_expired
from arborcast.ingest.settings import GatewaySettings
from arborcast.topic_model.records.control import (
    SecretsResealed,
    SubscriptionEnded,
    SubscriptionRecord,
    SubscriptionSuspended,
    Tombstone,
    ending,
)
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.subscriptions import Subscription
from tests.support import soap_messages as soap
from tests.support.gateway_parts import (
    GatewayParts,
    HttpAnswer,
    changed_elsewhere_first,
    live,
    only_subscription,
    path_of,
)


def subscribed(parts: GatewayParts, number: int = 0, termination: str | None = None) -> str:
    """The path of a new subscription."""
    body = soap.subscribe(f"http://127.0.0.1:9/{number}", termination=termination)
    return path_of(parts.post(soap.envelope(body)))


def post(parts: GatewayParts, path: str, body: str) -> HttpAnswer:
    return parts.post(soap.envelope(body), path)


def test_pause_and_resume_which_ends_a_suspension(parts: GatewayParts) -> None:
    path = subscribed(parts)
    for operation, paused in (("PauseSubscription", True), ("ResumeSubscription", False)):
        parts.suspensions.apply(SubscriptionSuspended(only_subscription(parts).id, "refused", 1, 2))
        assert post(parts, path, f"<wsnt:{operation}/>").root.find(f".//{{*}}{operation}Response") is not None
        assert (only_subscription(parts).paused, len(parts.suspensions)) == (paused, paused)


def test_renewals_within_the_grace_time_to_a_future_time() -> None:
    parts = GatewayParts(GatewaySettings(expiry_grace_s=60))
    path = subscribed(parts, termination="PT1M")
    answer = post(parts, path, soap.renew("2025-01-01T00:00:00Z"))
    assert (answer.fault, answer.text("MinimumTime")) == ("UnacceptableTerminationTimeFault", "2026-01-01T00:00:00Z")
    assert len(parts.control.records) == 1
    parts.later(seconds=119)
    assert post(parts, path, soap.renew("PT1M")).status == 200
    parts.later(seconds=120)
    assert post(parts, path, soap.renew("PT1M")).fault == "ResourceUnknownFault"


def test_unsubscribe_leaves_no_records(parts: GatewayParts) -> None:
    path = subscribed(parts)
    name = only_subscription(parts).id
    # The job and an operator write records with other keys, which this gateway may not have read yet.
    parts.control.records += [SubscriptionSuspended(name, "refused", 1, 2), SecretsResealed(name, {})]
    assert post(parts, path, "<wsnt:Unsubscribe/>").root.find(".//{*}UnsubscribeResponse") is not None
    assert parts.control.records[3:] == [
        SubscriptionEnded(name, "unsubscribed", 1_767_225_600_000),
        *(Tombstone(f"{kind}:{name}") for kind in ("sub", "susp", "seal")),
    ]
    assert live(parts.control.records) == set()
    assert list(parts.table.subscriptions()) == []
    assert post(parts, path, "<wsnt:Unsubscribe/>").fault == "ResourceUnknownFault"


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        (soap.renew("PT2H"), lambda one: one.paused),
        ("<wsnt:ResumeSubscription/>", lambda one: one.address == "moved"),
        ("<wsnt:PauseSubscription/>", lambda one: one.address == "moved"),
    ],
)
def test_a_concurrent_change_of_another_process_is_kept(
    monkeypatch: pytest.MonkeyPatch, parts: GatewayParts, body: str, kept: Callable[[Subscription], bool]
) -> None:
    path = subscribed(parts)
    changed_elsewhere_first(
        monkeypatch, parts, lambda one: [SubscriptionRecord(msgspec.structs.replace(one, paused=True, address="moved"))]
    )
    assert post(parts, path, body).status == 200
    after = only_subscription(parts)
    assert kept(after)
    assert after.paused is ("Resume" not in body)
    assert (after.terminates_ms is not None) is ("Renew" in body)


def test_expiry_keeps_a_subscription_renewed_through_another_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    """The view of this gateway is behind the log, and the other one has answered the Renew."""
    parts = GatewayParts(GatewaySettings(expiry_grace_s=0))
    subscribed(parts, 1, "PT1S")
    renewed = msgspec.structs.replace(only_subscription(parts), terminates_ms=None)

    async def catch_up() -> None:
        await parts.control.commit([SubscriptionRecord(renewed)])

    monkeypatch.setattr(parts.control, "catch_up", catch_up)
    parts.later(seconds=17)
    assert asyncio.run(end_expired(parts.gateway)) == 0
    assert only_subscription(parts) == renewed


def test_expiry_waits_for_renewals_that_another_gateway_has_not_written_yet() -> None:
    """A Renew in the last moment was accepted there, and Kafka is slow: its record would be before the end."""
    parts = GatewayParts(GatewaySettings(expiry_grace_s=60))
    path = subscribed(parts, 1, "PT1S")
    parts.later(seconds=61)
    assert post(parts, path, soap.renew("PT1M")).fault == "ResourceUnknownFault"
    assert asyncio.run(end_expired(parts.gateway)) == 0
    parts.later(seconds=14)
    assert asyncio.run(end_expired(parts.gateway)) == 0
    parts.later(seconds=1)
    parts.control.append_s = 120.0  # with another kafka.request_timeout_s
    assert asyncio.run(end_expired(parts.gateway)) == 0
    parts.later(seconds=110)
    assert asyncio.run(end_expired(parts.gateway)) == 1


def test_an_equal_subscribe_outlives_the_end_that_another_gateway_writes_at_this_moment() -> None:
    parts = GatewayParts(GatewaySettings(expiry_grace_s=60))
    subscribed(parts, 1, "PT1S")
    old = only_subscription(parts)
    parts.later(seconds=60)
    subscribed(parts, 1, "PT1S")
    assert only_subscription(parts).id == old.id, "it could be renewed"
    parts.later(seconds=61)
    subscribed(parts, 1)
    new = only_subscription(parts)
    asyncio.run(parts.control.commit(ending(old.id, "expired", 1)))
    assert only_subscription(parts) == new


@pytest.mark.parametrize("body", [soap.renew("PT2H"), "<wsnt:PauseSubscription/>", "<wsnt:ResumeSubscription/>"])
def test_no_change_revives_a_subscription_ended_elsewhere(
    monkeypatch: pytest.MonkeyPatch, parts: GatewayParts, body: str
) -> None:
    path = subscribed(parts)
    changed_elsewhere_first(monkeypatch, parts, lambda one: ending(one.id, "unsubscribed", 1))
    assert post(parts, path, body).fault == "ResourceUnknownFault"
    assert list(parts.table.subscriptions()) == []
    assert live(parts.control.records) == set()


def test_subscriptions_beyond_their_grace_time_are_ended() -> None:
    parts = GatewayParts(GatewaySettings(expiry_grace_s=60))
    first, second = subscribed(parts, 1, "PT10S"), subscribed(parts, 2, "PT20S")
    parts.later(seconds=84)
    assert asyncio.run(end_expired(parts.gateway)) == 0
    parts.later(seconds=1)
    assert asyncio.run(end_expired(parts.gateway)) == 1
    assert only_subscription(parts).id == second.rpartition("/")[2]
    (ended,) = [record for record in parts.control.records if isinstance(record, SubscriptionEnded)]
    assert (ended.id, ended.reason, ended.at_ms) == (first.rpartition("/")[2], "expired", 1_767_225_685_000)


@pytest.mark.parametrize("renewal", ["before", "during"])
def test_expiry_in_several_steps_keeps_a_renewed_subscription(renewal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = GatewayParts(GatewaySettings(expiry_grace_s=0))
    # Equal times are listed by their ids.
    kept = max(subscribed(parts, number, "PT1S").rpartition("/")[2] for number in range(7))
    parts.later(seconds=17)
    listed: list[int] = []
    due = RoutingTable.due

    def counted(table: RoutingTable, now_ms: int, limit: int) -> tuple[str, ...]:
        found = due(table, now_ms, limit)
        listed.append(len(found))
        return found

    monkeypatch.setattr(RoutingTable, "due", counted)
    monkeypatch.setattr(subscription_manager, "_AT_ONCE", 2)

    async def renew() -> None:
        last = parts.table.get(kept)
        assert last is not None
        await subscription_manager.replace(parts.gateway, last, terminates_ms=None)

    async def scenario() -> int:
        if renewal == "during":
            ended, _ = await asyncio.gather(end_expired(parts.gateway), renew())
            return ended
        async with parts.gateway.locks.hold(kept):
            return await end_expired(parts.gateway)

    assert asyncio.run(scenario()) == 6
    assert only_subscription(parts).id == kept
    assert max(listed) == 2
