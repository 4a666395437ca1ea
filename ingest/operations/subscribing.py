"""Creating subscriptions, the same for each protocol: rights, filters, endpoint, proof, quota, renewal, current
messages.

A protocol translates what it receives into a `SubscriptionRequest` and calls `create_subscription`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from arborcast.core.errors import ExpressionError, TopicNotSupported
from arborcast.core.security.outbound import AddressPolicy
from arborcast.ingest.access.grants import check_fill, check_serve, check_subscribe, may_manage, owner_of
from arborcast.ingest.addresses import resource_id
from arborcast.ingest.consumers import check_name
from arborcast.ingest.elements import dsub
from arborcast.ingest.elements.filters import CLOUD_EVENTS, DELIVERY, QUEUE, Filters, SubscriptionPolicy, check_server
from arborcast.ingest.operations.current_message import StateStart, check_few, send_current_messages
from arborcast.ingest.operations.gateway import Gateway, check_callable, check_room, endpoint_of
from arborcast.topic_model.expressions import XPathPattern, compile_normal
from arborcast.topic_model.grants import Caller
from arborcast.topic_model.patterns.patterns import Pattern
from arborcast.topic_model.records.control import ControlRecord, SubscriptionRecord, ending, ending_pull_point
from arborcast.topic_model.routing.rest import selects_any
from arborcast.topic_model.routing.selectors import has_xpath, selector_of
from arborcast.topic_model.subscriptions import (
    DEFAULT_POLICY,
    BoundEndpoint,
    EndpointReference,
    SoapVersion,
    Subscription,
    TopicFilter,
    XPathFilter,
    is_cloud_events,
)
from arborcast.wire import limits, times
from arborcast.wire.endpoints import Kind
from arborcast.wire.errors import ConsumerRefused, OperationRefused, TooLarge, UnsupportedPolicy

_DEFAULT = SubscriptionPolicy()

# Topics that one evaluation of an XPath visits, on the event loop: half a second, if it selects all of them.
_MOST_SEARCHED = 1_000_000


@dataclass(frozen=True, slots=True)
class SubscriptionRequest:
    """The requested subscription."""

    filters: Filters
    caller: Caller | None
    """None without authentication."""
    client: str = ""
    """The key of its rates."""
    consumer: EndpointReference | None = None
    """Where to push, or a pull point of ours; None: messages wait at the subscription itself."""
    policy: SubscriptionPolicy = _DEFAULT
    terminates_ms: int | None = None
    id: str = ""
    """The id of a durable subscription, derived from its name; empty for a new id."""
    endpoint: str = ""
    """The id of a pull point that becomes a further address of the subscription, as HPwsn's clients use theirs."""
    paused: bool = False
    soap: SoapVersion = "1.1"
    addressing: bool = False
    outbound: AddressPolicy | None = None
    """Replaces the gateway's policy: for a consumer of the settings, whose consent is not required."""


class CreatedSubscription(NamedTuple):
    """The subscription in force."""

    subscription: Subscription
    new: bool
    """False for the equal one that was there."""
    secret: str = ""
    """The signing secret that was made for it, empty for none."""


async def create_subscription(gateway: Gateway, request: SubscriptionRequest) -> CreatedSubscription:
    """Create a subscription. One to the same endpoint with the same filters is renewed instead; a durable one of the
    same id is kept where its filters and its policy are the same, and replaced otherwise.

    Raises Forbidden, ExpressionError, TopicNotSupported, UnsupportedPolicy, ConsumerRefused, OperationRefused,
    TooManyRequests, InvalidRequest, TooLarge, or InfrastructureError.
    """
    filters, policy = request.filters, request.policy
    check_subscribe(request.caller, filters.topics)
    if policy.queue:
        check_serve(request.caller, filters.topics)
    # Another gateway may just have created the pull point, or an equal subscription.
    await gateway.changes.catch_up()
    check_filters(gateway, filters)
    if policy.queue:
        check_server(filters, gateway.table.topics)
    subscription = subscription_of(gateway, request)
    if policy.current_message:
        await check_few(gateway, subscription, request.client)
    if subscription.pushed and request.outbound is None:
        if gateway.table.find_equal(subscription) is None:
            hook = is_cloud_events(subscription.form)
            await check_callable(gateway, subscription.consumer.address, subscription.owner, hook=hook)
        else:
            await check_name(gateway.dns_check, subscription.consumer.address)
    async with (
        gateway.locks.hold(("pull point", subscription.pull_point or request.endpoint or subscription.id)),
        gateway.locks.hold(("durable", request.id) if request.id else subscription.identity()),
    ):
        created, since = await _commit(gateway, request, subscription)
    if since is not None and policy.current_message:
        try:
            await send_current_messages(gateway, created.subscription, since)
        except BaseException:
            if request.id:
                gateway.unsent[request.id] = since  # a repetition changes nothing else
            raise
    return created


def check_filters(gateway: Gateway, filters: Filters | Subscription) -> None:
    """Raises TooLarge, ExpressionError or TopicNotSupported for expressions that are too large or too expensive, or
    select nothing here."""
    check_size(filters.topics, (*filters.content, *filters.producer))
    for expression in filters.topics:
        dsub.check_topic(expression)
        check_supported(gateway, expression)


def check_size(topics: Sequence[TopicFilter], conditions: Iterable[XPathFilter] = ()) -> None:
    """Raises TooLarge for expressions that together, each with its namespaces, are too large for the memory of every
    process."""
    expressions: list[TopicFilter | XPathFilter] = [*topics, *conditions]
    texts = (text for each in expressions for text in (each.text, *each.namespaces.values()))
    size = sum(map(len, texts)) + sum(len(each.normal) for each in topics)
    if size > limits.FILTERS:
        raise TooLarge(f"the expressions, each with its namespaces, have {size} characters, more than {limits.FILTERS}")


def check_supported(gateway: Gateway, expression: TopicFilter) -> None:
    """Raises ExpressionError for an expression that is too expensive, and TopicNotSupported for one that selects
    nothing in a fixed topic set.
    """
    pattern = compile_normal(expression.normal)
    if isinstance(pattern, Pattern) and pattern.steps > gateway.settings.expression_steps:
        raise ExpressionError(
            f"the expression has {pattern.steps} steps from the first wildcard of each alternative on, "
            f"more than {gateway.settings.expression_steps}: use fewer alternatives, or several subscriptions"
        )
    tree = gateway.table.topics
    if isinstance(pattern, XPathPattern) and expression.normal not in gateway.table.xpath_selectors:
        searches = expression.text.count("//")
        if searches > max(1, _MOST_SEARCHED // max(1, len(tree))):
            raise ExpressionError(
                f"the XPath searches {len(tree)} topics {searches} times (//), more than {_MOST_SEARCHED} together: "
                "use // less often, another dialect, or several subscriptions"
            )
    if not gateway.topics.fixed:
        return
    if not (pattern.select(tree) if isinstance(pattern, XPathPattern) else selects_any(pattern, tree)):
        raise TopicNotSupported(f"the expression {expression.text!r} selects no topic of the fixed topic set")


def subscription_of(gateway: Gateway, request: SubscriptionRequest) -> Subscription:
    """The requested subscription with the present time. Raises ConsumerRefused, Forbidden, OperationRefused,
    UnsupportedPolicy."""
    policy, identifier = request.policy, request.id or resource_id()
    address = gateway.own.resource(Kind.SUBSCRIPTION, identifier)
    form, delivery = policy.form, policy.delivery
    if form != "legacy" and delivery.fragment_bytes:
        raise UnsupportedPolicy(
            "p:Delivery: FragmentBytes is for subscribers in the older form (SubscriberAddress); others get messages "
            "whole",
            (DELIVERY,),
        )
    events = is_cloud_events(form)
    if events and request.consumer is not None and request.consumer.reference_parameters:
        raise UnsupportedPolicy(
            "with p:CloudEvents a push has no SOAP header for the ReferenceParameters of the ConsumerReference: put "
            "their contents into its address",
            (CLOUD_EVENTS,),
        )
    if request.consumer is None:
        consumer, pull_point = EndpointReference(address), identifier
    else:
        consumer, point = endpoint_of(gateway, request.consumer, request.outbound)
        pull_point = ""
        if point is not None:
            check_fill(request.caller, point)
            pull_point = point.id
    if pull_point:
        if form == "raw":
            raise OperationRefused("a pull point keeps whole messages, not raw ones", "UnsupportedPolicyRequestFault")
        if events:
            raise UnsupportedPolicy(
                "with p:CloudEvents messages are pushed: GET /events/TOPIC is a pull point's way to CloudEvents",
                (CLOUD_EVENTS,),
            )
        if policy.queue:
            raise UnsupportedPolicy(
                "with p:Queue requests are pushed: a pull point cannot report that it is idle", (QUEUE,)
            )
        if form == "legacy":  # the older form, and the size of its parts, are forms of pushes
            form, delivery = "notify", DEFAULT_POLICY
    filters = request.filters
    return Subscription(
        id=identifier,
        consumer=consumer,
        address=address,
        topics=filters.topics,
        content=filters.content,
        producer=filters.producer,
        types=filters.types,
        form=form,
        policy=delivery,
        soap=request.soap,
        addressing=request.addressing,
        created_ms=times.to_ms(gateway.now()),
        terminates_ms=request.terminates_ms,
        paused=request.paused,
        owner=owner_of(request.caller),
        pull_point=pull_point,
        queue=policy.queue,
    )


async def _commit(
    gateway: Gateway, request: SubscriptionRequest, subscription: Subscription
) -> tuple[CreatedSubscription, StateStart | None]:
    """Also returns the start of the subscription's present state; None if the request changed nothing, and the current
    messages are sent."""
    if (
        request.consumer is not None
        and subscription.pull_point
        and gateway.pull_points.get(subscription.pull_point) is None
    ):
        raise ConsumerRefused("the pull point was destroyed at this moment")
    bound, ended = _bound(gateway, request) if subscription.pushed else (None, [])
    unsent = gateway.unsent.pop(request.id, None)
    over: list[ControlRecord] = []
    while (existing := _existing(gateway, request, subscription)) is not None:
        async with gateway.locks.hold(existing.id):
            if gateway.table.get(existing.id) != existing:
                continue  # changed or ended while its lock was awaited
            if request.id:
                if (existing.selector(), existing.types, existing.policy) == (
                    subscription.selector(),
                    subscription.types,
                    subscription.policy,
                ):
                    return CreatedSubscription(existing, False), unsent
                made, since = await _commit_new(gateway, subscription)
                return CreatedSubscription(made, False), since
            now_ms = times.to_ms(gateway.now())
            if existing.expired(now_ms - gateway.settings.expiry_grace_s * 1000):
                # As for Renew it has ended: another gateway may write its end now, after a renewal.
                over = ending(existing.id, "expired", now_ms)
                break
            return await _renew(gateway, request, existing, subscription, ended)
    if not over:
        _check_room(gateway, subscription)
    if request.id and request.consumer is None:
        # Messages of an ended one of this id may be in the log still, and in the views of other gateways.
        await gateway.pulls.resume(request.id, sys.maxsize)
    subscription, secret = _protected(gateway, request, subscription)
    with gateway.concurrent.watch(subscription.id if request.id else subscription.identity()) as seen:
        made, since = await _commit_new(gateway, msgspec.structs.replace(subscription, endpoint=bound), [*over, *ended])
    if ended:
        gateway.pulls.forget(request.endpoint)
    first = next((each.subscription.id for each in seen if isinstance(each, SubscriptionRecord)), made.id)
    if not request.id and first != made.id:
        # Another gateway has made an equal one at the same time, before this one in the log.
        await gateway.changes.commit(ending(made.id, "unsubscribed", times.to_ms(gateway.now())))
        return await _commit(gateway, request, subscription)
    return CreatedSubscription(made, True, secret), since


def _existing(gateway: Gateway, request: SubscriptionRequest, subscription: Subscription) -> Subscription | None:
    return gateway.table.get(subscription.id) if request.id else gateway.table.find_equal(subscription)


async def _renew(
    gateway: Gateway,
    request: SubscriptionRequest,
    existing: Subscription,
    subscription: Subscription,
    ended: list[ControlRecord],
) -> tuple[CreatedSubscription, StateStart]:
    """Renewed, it is active even if it was paused, with the termination time and the policy of the request. Its
    protection is that of the request, else unchanged."""
    renewed = msgspec.structs.replace(
        existing,
        address=gateway.own.resource(Kind.SUBSCRIPTION, existing.id),  # the gateway may have had another one
        terminates_ms=subscription.terminates_ms,
        paused=subscription.paused,
        addressing=subscription.addressing,
        queue=subscription.queue,
        policy=subscription.policy,
    )
    renewed, secret = _protected(gateway, request, renewed)
    records = [*ended, *gateway.suspensions.resumption(existing.id)]
    since = StateStart(gateway.table.position - 1, times.to_ms(gateway.now()))
    if renewed != existing:
        records.insert(0, SubscriptionRecord(renewed))
    if records:
        since = since._replace(offset=await gateway.changes.commit(records))
    if ended:
        gateway.pulls.forget(request.endpoint)
    return CreatedSubscription(renewed, False, secret), since


async def _commit_new(
    gateway: Gateway, subscription: Subscription, also: list[ControlRecord] | None = None
) -> tuple[Subscription, StateStart]:
    """Append a new subscription, created now: it gets notifications accepted later. The records `also` are appended
    with it; a provisional pull point that it fills becomes permanent."""
    made = msgspec.structs.replace(subscription, created_ms=times.to_ms(gateway.now()))
    records: list[ControlRecord] = [SubscriptionRecord(made), *(also or ())]
    point = gateway.pull_points.get(made.pull_point)
    if point is not None and point.until_ms:
        records.append(msgspec.structs.replace(point, until_ms=0))
    return made, StateStart(await gateway.changes.commit(records), made.created_ms, new=True)


def _protected(gateway: Gateway, request: SubscriptionRequest, subscription: Subscription) -> tuple[Subscription, str]:
    requested = request.policy.protection
    if requested is None:
        return subscription, ""
    return gateway.protector.grant(subscription, requested, times.to_ms(gateway.now()))


def _check_room(gateway: Gateway, subscription: Subscription) -> None:
    """Raises OperationRefused for an owner with the maximum number of subscriptions, which does not apply without an
    owner, and for a further XPath topic expression above their maximum or the share of the owner.

    Parallel requests may exceed the bounds by their number.
    """
    owner, xpaths = subscription.owner, gateway.table.xpath_selectors
    if has_xpath(subscription) and selector_of(subscription) not in xpaths:
        check_room(
            gateway,
            owner,
            gateway.owners.xpath_expressions(owner),
            len(xpaths),
            gateway.settings.xpath_expressions,
            "xpath expressions",
            "SubscribeCreationFailedFault",
            "use another dialect, or an existing expression",
        )
    limit = gateway.settings.subscriptions_per_owner
    if not limit or not owner:
        return
    held = gateway.owners.subscriptions(owner)
    if held >= limit:
        raise OperationRefused(
            f"{owner!r} has {held} subscriptions, the maximum of {limit}: end unused ones",
            "SubscribeCreationFailedFault",
        )


def _bound(gateway: Gateway, request: SubscriptionRequest) -> tuple[BoundEndpoint | None, list[ControlRecord]]:
    """The endpoint of a subscription that names a pull point, and the records that end the pull point, which has no
    further use. None and none where it is in use, or belongs to another owner."""
    points, named = gateway.pull_points, request.endpoint
    if not named:
        return None, []
    point = points.get(named)
    if point is None:
        # It is bound already, or was ended unused: it is the subscriber's address in both cases.
        bound = BoundEndpoint(named, points.endpoints.name_of(named, owner_of(request.caller)))
        return (None if points.exists(named) else bound), []
    if not points.is_provisional(named) or not may_manage(request.caller, point.owner):
        return None, []
    return BoundEndpoint(named, point.name), ending_pull_point(named, "destroyed", times.to_ms(gateway.now()))
