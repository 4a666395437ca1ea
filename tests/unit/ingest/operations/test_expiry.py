from __future__ import annotations

import asyncio

import pytest

from arborcast.ingest.operations import subscription_manager
from arborcast.ingest.operations.subscription_manager import end_expired
from arborcast.ingest.settings import GatewaySettings
from arborcast.topic_model.records.control import SubscriptionEnded
from arborcast.topic_model.routing import RoutingTable
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts


def subscribed(parts: GatewayParts, *, to: str, termination: str) -> str:
    answer = parts.post(soap.envelope(soap.subscribe(to, termination=termination)))
    address = answer.root.findtext(".//{*}SubscriptionReference/{*}Address")
    assert address is not None
    return address.rpartition("/")[2]


def test_only_what_is_beyond_its_grace_is_ended() -> None:
    parts = GatewayParts(GatewaySettings(expiry_grace_s=60))
    first = subscribed(parts, to="http://h/1", termination="PT10S")
    second = subscribed(parts, to="http://h/2", termination="PT20S")
    parts.later(seconds=69)
    assert asyncio.run(end_expired(parts.gateway)) == 0
    parts.later(seconds=1)
    assert asyncio.run(end_expired(parts.gateway)) == 1
    assert [one.id for one in parts.table.subscriptions()] == [second]
    ended = [record for record in parts.control.records if isinstance(record, SubscriptionEnded)]
    assert [(one.id, one.reason, one.at_ms) for one in ended] == [(first, "expired", 1_767_225_670_000)]


def test_a_renewal_under_way_wins_and_many_are_ended_in_several_steps() -> None:
    parts = GatewayParts(GatewaySettings(expiry_grace_s=0))
    kept, *_ = [subscribed(parts, to=f"http://h/{number}", termination="PT1S") for number in range(502)]
    parts.later(seconds=2)

    async def scenario() -> int:
        async with parts.gateway.locks.hold(kept):
            return await end_expired(parts.gateway)

    assert asyncio.run(scenario()) == 501
    assert [each.id for each in parts.table.subscriptions()] == [kept]


def test_all_that_are_due_are_listed_once_and_one_that_was_renewed_meanwhile_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = GatewayParts(GatewaySettings(expiry_grace_s=0))
    # Equal times are listed by their ids.
    kept = max(subscribed(parts, to=f"http://h/{number}", termination="PT1S") for number in range(7))
    parts.later(seconds=2)
    listed: list[int] = []
    due = RoutingTable.due

    def counted(table: RoutingTable, now_ms: int) -> tuple[str, ...]:
        found = due(table, now_ms)
        listed.append(len(found))
        return found

    monkeypatch.setattr(RoutingTable, "due", counted)
    monkeypatch.setattr(subscription_manager, "_AT_ONCE", 2)

    async def renew_last() -> None:
        last = parts.table.get(kept)
        assert last is not None
        await subscription_manager.replace(parts.gateway, last, terminates_ms=None)

    async def scenario() -> int:
        ended, _ = await asyncio.gather(end_expired(parts.gateway), renew_last())
        return ended

    assert asyncio.run(scenario()) == 6
    assert [each.id for each in parts.table.subscriptions()] == [kept]
    assert listed == [7]
