"""Outgoing rules as subscriptions of the engine, whose ids begin with `mqtt.`: created, changed and ended with the
rules. Their messages are pushed as those of any subscription."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import msgspec

from arborcast.core.backoff import Backoff, repeated, retried
from arborcast.core.errors import InfrastructureError, PeerError
from arborcast.core.mqtt.settings import MqttSettings, for_mqtt
from arborcast.ingest.elements.filters import Filters, SubscriptionPolicy
from arborcast.ingest.mqtt.incoming import entered
from arborcast.ingest.mqtt.rules import OutRule
from arborcast.ingest.operations.gateway import Gateway
from arborcast.ingest.operations.publishing import again
from arborcast.ingest.operations.subscribing import SubscriptionRequest, create_subscription
from arborcast.topic_model.mqtt_names import is_mqtt
from arborcast.topic_model.records.control import ControlRecord, SubscriptionRecord, ending
from arborcast.topic_model.subscriptions import EndpointReference
from arborcast.wire import times
from arborcast.wire.errors import UnsupportedPolicy

logger = logging.getLogger(__name__)

# Interval of checks of the rules' subscriptions.
_CHECK_S = 1.0

_BACKOFF = Backoff(_CHECK_S, _CHECK_S)

# Subscriptions checked in one step; then the event loop serves others.
_WALK = 10_000

_PREFIX = "mqtt."


async def keep_subscriptions(gateway: Gateway, settings: MqttSettings, rules: Sequence[OutRule]) -> None:
    """Keep the subscriptions of the rules until cancelled; without rules, until those of earlier rules have ended.
    Failures are logged and retried."""
    errors, what = (PeerError, InfrastructureError), "mqtt: subscriptions of earlier [out] rules cannot be ended"
    await retried(what, partial(end_others, gateway, rules), _BACKOFF, *errors)
    async with asyncio.TaskGroup() as tasks:
        for rule in rules:
            what = f"mqtt: the subscription of the rule [out.{rule.name}] cannot be changed"
            tasks.create_task(repeated(what, partial(keep, gateway, settings, rule), _CHECK_S, _BACKOFF, *errors))


async def keep(gateway: Gateway, settings: MqttSettings, rule: OutRule) -> None:
    """Create a missing subscription, or change that of a changed rule. Raises PeerError or InfrastructureError."""
    identifier, consumer = f"{_PREFIX}{rule.name}", EndpointReference(rule.address)
    existing = gateway.table.get(identifier)
    if existing is None or identifier in gateway.unsent:
        await _make(gateway, settings, rule, identifier)
    elif (existing.consumer, existing.topics, existing.policy) != (consumer, rule.topics, rule.policy):
        async with gateway.locks.hold(identifier):
            changed = msgspec.structs.replace(existing, consumer=consumer, topics=rule.topics, policy=rule.policy)
            await gateway.changes.commit([SubscriptionRecord(changed)])
        logger.info("mqtt: the rule [out.%s] now sends to %s", rule.name, rule.address)


async def _make(gateway: Gateway, settings: MqttSettings, rule: OutRule, identifier: str) -> None:
    request = SubscriptionRequest(
        Filters(rule.topics),
        again(gateway, await entered(gateway, settings), 0).caller,
        consumer=EndpointReference(rule.address),
        policy=SubscriptionPolicy("raw", current_message=rule.retain, delivery=rule.policy),
        id=identifier,
        outbound=for_mqtt(gateway.outbound),
    )
    try:
        await create_subscription(gateway, request)
    except UnsupportedPolicy as error:
        logger.warning("mqtt: the rule [out.%s] begins without current messages: %s", rule.name, error)
        policy = replace(request.policy, current_message=False)
        await create_subscription(gateway, replace(request, policy=policy))
    logger.info("mqtt: the rule [out.%s] sends to %s", rule.name, rule.address)


async def end_others(gateway: Gateway, rules: Sequence[OutRule]) -> None:
    """End the subscriptions of rules that are not there any more."""
    kept = {f"{_PREFIX}{each.name}" for each in rules}
    records: list[ControlRecord] = []
    for number, each in enumerate(list(gateway.table.subscriptions())):
        if each.id.startswith(_PREFIX) and is_mqtt(each.consumer.address) and each.id not in kept:
            records += ending(each.id, "unsubscribed", times.to_ms(gateway.now()))
        if number % _WALK == 0:
            await asyncio.sleep(0)
    if records:
        await gateway.changes.commit(records)
