"""Operations of ours at a subscription's address: replacing its signing secret, and its credentials."""

from __future__ import annotations

from ingest import termination
from ingest.addresses import Kind, Target
from ingest.envelope import Request
from ingest.errors import InvalidRequest
from ingest.gateway import Gateway, Operation, Reply
from ingest.namespaces import ARBORCAST_POLICY
from ingest.protection import read_credentials, read_secret, required, told_element
from ingest.subscription_manager import held, replace

_LONGEST_OVERLAP_MS = 366 * 86_400_000

_ROTATE, _SET = "RotateSecret", "SetCredentials"


async def rotate_secret(gateway: Gateway, request: Request, target: Target) -> Reply:
    """Sign with another secret from now on, and with the old one too for the overlap."""
    secret = read_secret(request.operation)
    async with held(gateway, request, target) as subscription:
        now = gateway.now()
        protector = required(gateway.protector)
        overlap_ms = protector.overlap_ms()
        wanted = request.operation.get("Overlap")
        if wanted is not None:
            try:
                overlap_ms = min(round(termination.duration_s(wanted, now) * 1000), _LONGEST_OVERLAP_MS)
            except ValueError as error:
                raise InvalidRequest(f"Overlap: {error}") from error
        now_ms = termination.to_ms(now)
        changed, told, until = protector.with_secret(subscription, secret, now_ms, overlap_ms)
        await replace(gateway, subscription, protection=changed.protection)
    end = "" if until is None else f"<p:OldUntil>{termination.written(termination.from_ms(until))}</p:OldUntil>"
    return _reply(_ROTATE, told_element(told) + end)


async def set_credentials(gateway: Gateway, request: Request, target: Target) -> Reply:
    """Push with other credentials from now on, or with none."""
    credentials = read_credentials(request.operation)
    async with held(gateway, request, target) as subscription:
        changed = required(gateway.protector).with_credentials(subscription, credentials)
        await replace(gateway, subscription, protection=changed.protection)
    return _reply(_SET, "")


def _reply(operation: str, content: str) -> Reply:
    name = f"{operation}Response"
    return Reply(f'<p:{name} xmlns:p="{ARBORCAST_POLICY}">{content}</p:{name}>', f"{ARBORCAST_POLICY}/{name}")


_ANYWHERE = frozenset({Kind.SUBSCRIPTION, Kind.BROKER})

OPERATIONS: tuple[Operation, ...] = (
    Operation(f"{{{ARBORCAST_POLICY}}}{_ROTATE}", rotate_secret, _ANYWHERE),
    Operation(f"{{{ARBORCAST_POLICY}}}{_SET}", set_credentials, _ANYWHERE),
)
"""What a subscription's address offers beside the standard's operations."""
