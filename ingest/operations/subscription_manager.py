"""The (Pausable)SubscriptionManager port types: Renew, Unsubscribe, PauseSubscription, ResumeSubscription."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import msgspec

from arborcast.core.backoff import Backoff, repeated
from arborcast.core.errors import InfrastructureError, UnknownResource
from arborcast.ingest.access.grants import may_manage
from arborcast.ingest.addresses import Target
from arborcast.ingest.elements.protection import read_credentials, read_secret, secret_element
from arborcast.ingest.operations import publisher_registration, pull_points
from arborcast.ingest.operations.gateway import AT_SUBSCRIPTION, Gateway, Operation, Reply, reply_of
from arborcast.ingest.operations.notification_broker import is_nil, requested_termination, termination_element
from arborcast.topic_model.grants import Caller
from arborcast.topic_model.namespaces import ACTION_BW, ARBORCAST_POLICY, WSNT, wsnt
from arborcast.topic_model.records.control import (
    ControlRecord,
    SubscriptionEnded,
    SubscriptionRecord,
    Tombstone,
    ending,
)
from arborcast.topic_model.subscriptions import Subscription
from arborcast.wire import limits, times
from arborcast.wire.endpoints import Kind
from arborcast.wire.envelope import Request
from arborcast.wire.errors import InvalidRequest


async def renew(gateway: Gateway, request: Request, target: Target) -> Reply:
    """Set another termination time. Within the grace time an expired subscription becomes active again."""
    async with locked_subscription(gateway, request, target) as subscription:
        now = gateway.now()
        element = request.operation.find(wsnt("TerminationTime"))
        if element is None:
            raise InvalidRequest("Renew has no wsnt:TerminationTime (xsi:nil for no end)")
        terminates_ms = requested_termination(element, now, initial=False)
        if is_nil(element) and subscription.pull_point == subscription.id:
            # ONVIF's: as in CreatePullPointSubscription, nil is written for a value that is not set (zeep, .NET).
            terminates_ms = times.to_ms(now + timedelta(seconds=gateway.settings.pull_subscription_s))
        renewed = await replace(gateway, subscription, terminates_ms=terminates_ms)
    # The schema has the reverse order of SubscribeResponse.
    content = f"{termination_element(renewed)}<wsnt:CurrentTime>{times.written(now)}</wsnt:CurrentTime>"
    return _reply("RenewResponse", "SubscriptionManager", content)


async def unsubscribe(gateway: Gateway, request: Request, target: Target) -> Reply:
    """End the subscription; it gets no notification accepted after the answer."""
    endpoint = target.id if target.kind is Kind.PULL_POINT else ""
    if not target.id and not gateway.named_in(request, Kind.SUBSCRIPTION):
        endpoint = gateway.named_in(request, Kind.PULL_POINT)
    if endpoint:
        await _end_of_endpoint(gateway, request, endpoint)
    else:
        await end(gateway, request, target)
    return _reply("UnsubscribeResponse", "SubscriptionManager")


async def pause(gateway: Gateway, request: Request, target: Target) -> Reply:
    """Stop pushing until resumed."""
    async with locked_subscription(gateway, request, target) as subscription:
        await replace(gateway, subscription, paused=True)
    return _reply("PauseSubscriptionResponse", "PausableSubscriptionManager")


async def resume(gateway: Gateway, request: Request, target: Target) -> Reply:
    """Push again, whether its subscriber had paused it or the engine had suspended it."""
    async with locked_subscription(gateway, request, target) as subscription:
        # Even if this view has no suspension yet.
        await replace(gateway, subscription, Tombstone.of("susp", subscription.id), paused=False)
    return _reply("ResumeSubscriptionResponse", "PausableSubscriptionManager")


async def end(gateway: Gateway, request: Request, target: Target) -> None:
    """End the request's subscription. Raises UnknownResource."""
    async with locked_subscription(gateway, request, target) as subscription:
        await gateway.changes.commit(ending(subscription.id, "unsubscribed", times.to_ms(gateway.now())))


async def _end_of_endpoint(gateway: Gateway, request: Request, endpoint: str) -> None:
    """End the subscription of a client of HPwsn with this endpoint. Raises UnknownResource or InvalidRequest."""
    await gateway.changes.catch_up()
    bound = sorted(gateway.pull_points.endpoints.subscriptions_of(endpoint))
    meant: list[str] = []
    addresses: set[str] = set()
    for begin in range(0, len(bound), _AT_ONCE):
        found = map(gateway.table.get, bound[begin : begin + _AT_ONCE])
        some = [one for one in found if one is not None and may_manage(request.caller, one.owner, one.topics)]
        meant += [one.id for one in some]
        addresses.update(one.consumer.address for one in some)
        await asyncio.sleep(0)
    if not meant:
        raise UnknownResource(f"there is no subscription with the endpoint {endpoint[:200]!r} (any more)")
    if len(addresses) > 1:
        # Clients with the same name. None may end another one's subscription by mistake.
        raise InvalidRequest(
            "several subscribers have this endpoint: send Unsubscribe to the address in the SubscriptionReference"
        )
    now_ms = times.to_ms(gateway.now())
    for begin in range(0, len(meant), _AT_ONCE):
        async with gateway.locks.hold_all(meant[begin : begin + _AT_ONCE]):
            left = [each for each in meant[begin : begin + _AT_ONCE] if gateway.table.get(each) is not None]
            await gateway.changes.commit([record for each in left for record in ending(each, "unsubscribed", now_ms)])


@asynccontextmanager
async def locked_subscription(gateway: Gateway, request: Request, target: Target) -> AsyncIterator[Subscription]:
    """A context with the locked subscription of a request. Raises UnknownResource."""
    identifier = await gateway.resource_of(request, target, Kind.SUBSCRIPTION)
    async with gateway.locks.hold(identifier):
        yield managed_subscription(gateway, identifier, request.caller)


def managed_subscription(gateway: Gateway, identifier: str, caller: Caller | None) -> Subscription:
    """The subscription of this id, if the caller may change and end it; the caller holds its lock. All protocols use
    this.

    Raises UnknownResource, the same for a subscription of another owner as for one that does not exist.
    """
    subscription = gateway.table.get(identifier)
    if (
        subscription is None
        or subscription.trigger is not None  # DestroyTrigger ends it
        or subscription.of_settings
        or subscription.expired(times.to_ms(gateway.now()) - gateway.settings.expiry_grace_s * 1000)
        or not may_manage(caller, subscription.owner, subscription.topics)
    ):
        raise UnknownResource(f"there is no subscription {identifier[:200]!r} (any more)")
    return subscription


async def replace(
    gateway: Gateway, subscription: Subscription, *more: ControlRecord, **changes: object
) -> Subscription:
    """The subscription with these fields changed, in the log, with `more` records, and in our view. The caller holds
    its lock. Fields that other processes change meanwhile keep their new values. Raises UnknownResource if one of them
    ends the subscription meanwhile, InfrastructureError if the log cannot be written."""
    with gateway.concurrent.watch(subscription.id) as seen:
        latest = written = subscription
        while (changed := msgspec.structs.replace(latest, **changes)) != written or more:
            own = SubscriptionRecord(changed)
            await gateway.changes.commit([own, *more])
            if not seen or seen[0] == own:
                break
            last = [each for each in seen if each != own][-1]
            if isinstance(last, SubscriptionEnded):
                await gateway.changes.commit(ending(last.id, last.reason, last.at_ms))
                raise UnknownResource(f"the subscription {last.id[:200]!r} was ended meanwhile")
            latest, written, more = last.subscription, changed, ()
            seen.clear()
        return changed


def _reply(name: str, port_type: str, content: str = "") -> Reply:
    return reply_of(("wsnt", WSNT, name), content, port_type=f"{ACTION_BW}/{port_type}")


_ROTATE, _SET = "RotateSecret", "SetCredentials"


async def rotate_secret(gateway: Gateway, request: Request, target: Target) -> Reply:
    """Sign with another secret from now on, and with the old one too for the overlap."""
    secret = read_secret(request.operation)
    async with locked_subscription(gateway, request, target) as subscription:
        now = gateway.now()
        overlap_ms = gateway.protector.overlap_ms
        wanted = request.operation.get("Overlap")
        if wanted is not None:
            try:
                overlap_ms = min(round(times.duration_s(wanted, now) * 1000), limits.LIFESPAN_MS)
            except ValueError as error:
                raise InvalidRequest(f"Overlap: {error}") from error
        now_ms = times.to_ms(now)
        changed, made_secret, until = gateway.protector.with_secret(subscription, secret, now_ms, overlap_ms)
        await replace(gateway, subscription, protection=changed.protection)
    end = "" if until is None else f"<p:OldUntil>{times.written(times.from_ms(until))}</p:OldUntil>"
    return reply_of(("p", ARBORCAST_POLICY, f"{_ROTATE}Response"), secret_element(made_secret) + end)


async def set_credentials(gateway: Gateway, request: Request, target: Target) -> Reply:
    """Push with other credentials from now on, or with none."""
    credentials = read_credentials(request.operation)
    async with locked_subscription(gateway, request, target) as subscription:
        changed = gateway.protector.with_credentials(subscription, credentials)
        await replace(gateway, subscription, protection=changed.protection)
    return reply_of(("p", ARBORCAST_POLICY, f"{_SET}Response"))


OPERATIONS: tuple[Operation, ...] = (
    Operation(wsnt("Renew"), renew, AT_SUBSCRIPTION),
    Operation(wsnt("Unsubscribe"), unsubscribe, AT_SUBSCRIPTION | {Kind.PULL_POINT}),
    Operation(wsnt("PauseSubscription"), pause, AT_SUBSCRIPTION),
    Operation(wsnt("ResumeSubscription"), resume, AT_SUBSCRIPTION),
    Operation(f"{{{ARBORCAST_POLICY}}}{_ROTATE}", rotate_secret, AT_SUBSCRIPTION),
    Operation(f"{{{ARBORCAST_POLICY}}}{_SET}", set_credentials, AT_SUBSCRIPTION),
)


logger = logging.getLogger(__name__)

_INTERVAL_S = 1.0

# Ends per append: a million that expire together must not become one request.
_AT_ONCE = 500

# A subscription ends later than its last possible renewal, which then is in the log: with the end after it, a renewed
# subscription would be lost. The difference of two gateways' clocks, in seconds, beside the time of an append.
_CLOCKS_APART_S = 5.0


async def end_expired_forever(gateway: Gateway) -> None:
    """Run until cancelled."""

    async def end() -> None:
        await end_expired(gateway)
        await end_expired_registrations(gateway)
        await pull_points.end_unused(gateway)

    what = "expired subscriptions, registrations and pull points cannot be ended now"
    await repeated(what, end, _INTERVAL_S, Backoff(_INTERVAL_S, _INTERVAL_S), InfrastructureError)


async def end_expired(gateway: Gateway) -> int:
    """End expired subscriptions, some with each append; returns their number."""
    now_ms = times.to_ms(gateway.now())
    renewed_s = gateway.settings.expiry_grace_s + gateway.changes.append_s + _CLOCKS_APART_S
    before_ms = now_ms - int(renewed_s * 1000)
    ended = 0
    while due := gateway.table.due(before_ms, _AT_ONCE):
        await gateway.changes.catch_up()  # one may be renewed through another gateway
        # A concurrent renewal has the lock: checked again in the next round. Others were renewed meanwhile.
        free = [
            each
            for each in due
            if each not in gateway.locks and (there := gateway.table.get(each)) is not None and there.expired(before_ms)
        ]
        if not free:
            break
        async with gateway.locks.hold_all(free):
            await gateway.changes.commit([record for one in free for record in ending(one, "expired", now_ms)])
        logger.info("ended %d expired subscriptions", len(free))
        ended += len(free)
    return ended


async def end_expired_registrations(gateway: Gateway) -> None:
    """End the publisher registrations that are due. There is no grace: a publisher registers again."""
    now_ms = times.to_ms(gateway.now())
    due = gateway.registrations.due(now_ms, _AT_ONCE)
    if due:
        await gateway.changes.commit(
            [record for one in due for record in publisher_registration.ending(one, "expired", now_ms)]
        )
        logger.info("ended %d expired registrations", len(due))
