"""Ending subscriptions whose time is over and whose grace has passed, and registrations whose time is over.

What is accepted behind its termination time does not belong to a subscription; this takes away what nobody renewed,
and with it what still waits.
With several gateways each does it; the second end of a subscription changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack

from core.errors import InfrastructureError
from ingest.operations import publisher_registration
from ingest.operations.gateway import Gateway
from ingest.soap import times
from topic_model.records.control import ending

logger = logging.getLogger(__name__)

_INTERVAL_S = 1.0

# So many ends go into one append. A million that expire together must not become one enormous request.
_AT_ONCE = 500


async def end_expired_forever(gateway: Gateway) -> None:
    """Run until cancelled."""
    while True:
        try:
            ended = await end_expired(gateway)
            await end_expired_registrations(gateway)
        except InfrastructureError as error:
            logger.warning("expired subscriptions cannot be ended now: %s", error)
            ended = 0
        if ended < _AT_ONCE:
            await asyncio.sleep(_INTERVAL_S)


async def end_expired(gateway: Gateway) -> int:
    """End some of the subscriptions that are due; returns how many."""
    now_ms = times.to_ms(gateway.now())
    due = gateway.table.due(now_ms - gateway.settings.expiry_grace_s * 1000)
    # One that is being renewed at this moment is held by its renewal: next time.
    free = [subscription_id for subscription_id in due[:_AT_ONCE] if subscription_id not in gateway.locks]
    if not free:
        return 0
    async with AsyncExitStack() as held:
        for subscription_id in free:
            await held.enter_async_context(gateway.locks.hold(subscription_id))
        await gateway.changes.commit([record for one in free for record in ending(one, "expired", now_ms)])
    logger.info("ended %d expired subscriptions", len(free))
    return len(free)


async def end_expired_registrations(gateway: Gateway) -> None:
    """End the publisher registrations that are due. There is no grace: a publisher registers anew."""
    now_ms = times.to_ms(gateway.now())
    due = gateway.registrations.due(now_ms)[:_AT_ONCE]
    if due:
        await gateway.changes.commit(
            [record for one in due for record in publisher_registration.ending(one, "expired", now_ms)]
        )
        logger.info("ended %d expired registrations", len(due))
