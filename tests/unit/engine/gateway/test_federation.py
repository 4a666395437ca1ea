"""Links of an engine that leaves its federation."""

from __future__ import annotations

import asyncio

from arborcast.engine.gateway.federation import close_links
from arborcast.ingest.federation.interests import PeerInterests
from arborcast.topic_model.records.control import SubscriptionRecord
from arborcast.topic_model.subscriptions import EndpointReference, Peer, Subscription
from tests.support.gateway_parts import GatewayParts


def test_they_take_nothing_more_once_it_is_by_itself() -> None:
    parts, interests = GatewayParts(), PeerInterests()
    parts.control.folds = [*parts.control.folds, interests]
    link = Subscription("peer-b", EndpointReference("http://b/"), form="peer", peer=Peer("G/a", "G/b"))
    asyncio.run(parts.control.commit([SubscriptionRecord(link)]))
    for _ in range(2):
        asyncio.run(close_links(parts.gateway, interests))
    (_, closed) = parts.control.records
    assert isinstance(closed, SubscriptionRecord)
    assert closed.subscription.terminates_ms == int(parts.now.timestamp() * 1000)
