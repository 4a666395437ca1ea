"""WS-ResourceLifetime on subscriptions: SetTerminationTime and Destroy, the older names of Renew and Unsubscribe."""

from __future__ import annotations

from datetime import datetime

from lxml import etree

from ingest import termination
from ingest.addresses import Kind, Target
from ingest.envelope import Request
from ingest.errors import InvalidRequest, OperationRefused, UnacceptableTermination
from ingest.gateway import Gateway, Operation, Reply
from ingest.namespaces import ACTION_RLW, WSRF_RL, XSI, wsrf_rl
from ingest.notification_broker import requested_termination
from ingest.subscription_manager import end, held, replace
from topic_model.subscriptions import Subscription


async def set_termination_time(gateway: Gateway, request: Request, target: Target) -> Reply:
    """Set another termination time; an expired subscription comes back to life within the grace time."""
    async with held(gateway, request, target) as subscription:
        now = gateway.now()
        terminates_ms = _requested(request.operation, now)
        renewed = await replace(gateway, subscription, terminates_ms=terminates_ms)
    return _reply(
        "ScheduledResourceTermination",
        "SetTerminationTimeResponse",
        f"{_new_time(renewed)}<wsrf-rl:CurrentTime>{termination.written(now)}</wsrf-rl:CurrentTime>",
    )


async def destroy(gateway: Gateway, request: Request, target: Target) -> Reply:
    """End the subscription."""
    await end(gateway, request, target)
    return _reply("ImmediateResourceTermination", "DestroyResponse", "")


def _requested(operation: etree._Element, now: datetime) -> int | None:
    element = operation.find(wsrf_rl("RequestedTerminationTime"))
    if element is None:
        element = operation.find(wsrf_rl("RequestedLifetimeDuration"))
    if element is None:
        raise InvalidRequest(
            "SetTerminationTime has neither wsrf-rl:RequestedTerminationTime nor wsrf-rl:RequestedLifetimeDuration"
        )
    try:
        return requested_termination(element, now, initial=False)
    except UnacceptableTermination as error:
        raise OperationRefused(str(error), "TerminationTimeChangeRejectedFault") from error


def _new_time(subscription: Subscription) -> str:
    if subscription.terminates_ms is None:
        return f'<wsrf-rl:NewTerminationTime xmlns:xsi="{XSI}" xsi:nil="true"/>'
    moment = termination.from_ms(subscription.terminates_ms)
    return f"<wsrf-rl:NewTerminationTime>{termination.written(moment)}</wsrf-rl:NewTerminationTime>"


def _reply(port_type: str, name: str, content: str) -> Reply:
    return Reply(
        f'<wsrf-rl:{name} xmlns:wsrf-rl="{WSRF_RL}">{content}</wsrf-rl:{name}>', f"{ACTION_RLW}/{port_type}/{name}"
    )


_ANYWHERE = frozenset({Kind.SUBSCRIPTION, Kind.BROKER})

OPERATIONS: tuple[Operation, ...] = (
    Operation(wsrf_rl("SetTerminationTime"), set_termination_time, _ANYWHERE),
    Operation(wsrf_rl("Destroy"), destroy, _ANYWHERE),
)
"""What a subscription's address offers; at the broker's address the subscription must be named in the message."""
