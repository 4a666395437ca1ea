from __future__ import annotations

import asyncio

from arborcast.ingest.operations.subscription_manager import end_expired
from arborcast.ingest.settings import GatewaySettings
from arborcast.topic_model.records.control import SubscriptionEnded
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

    async def scenario() -> list[int]:
        async with parts.gateway.locks.hold(kept):
            return [await end_expired(parts.gateway) for _ in range(2)]

    assert sum(asyncio.run(scenario())) == 501
    assert [each.id for each in parts.table.subscriptions()] == [kept]
