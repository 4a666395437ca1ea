"""Messages of old publishers that arrive in parts.

Each part is a record of the log `fragments`, and answered when it is stored. The gateway that stores the completing
part joins their contents, checks the result as any message, and accepts it under an id derived from the key and the
position of that part. If it dies in between, the holder of the lease does the same some seconds later, with the same
id. The holder also gives up messages whose parts stop arriving.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from arborcast.core.backoff import Backoff, repeated
from arborcast.core.errors import ArborcastError, InfrastructureError, PeerError
from arborcast.ingest.access.grants import owner_of
from arborcast.ingest.addresses import Target, derived_id
from arborcast.ingest.http.inflight import SMALL
from arborcast.ingest.operations.gateway import Gateway
from arborcast.ingest.operations.legacy import messages
from arborcast.ingest.operations.legacy.messages import MessagePart
from arborcast.ingest.operations.legacy.text import decoded_once
from arborcast.ingest.operations.publishing import (
    PublishingClient,
    PublishRequest,
    check_rate,
    check_rights,
    in_thread_if_large,
    publish,
)
from arborcast.topic_model.message_types import stored_type
from arborcast.topic_model.projections.open_messages import OpenMessage
from arborcast.topic_model.records.fragments import Reason, StoredPart, key_of
from arborcast.topic_model.records.notifications import Notification
from arborcast.wire import times
from arborcast.wire.envelope import Request
from arborcast.wire.errors import InvalidRequest

logger = logging.getLogger(__name__)

# For this time a complete message is left to the gateway that completed it.
_LEFT_S = 5.0

_INTERVAL_S = 1.0

# The log keeps parts for an hour.
_OLDEST_MS = 50 * 60 * 1000


async def take(gateway: Gateway, part: MessagePart, target: Target, request: Request) -> None:
    """Return when the part is stored and, if it was the last missing one, the message is stored, too. Raises PeerError,
    or InfrastructureError."""
    publisher, topics = PublishingClient(request.caller, request.client, target), (part.topic,)
    check_rights(gateway, publisher, topics)
    gateway.check_new(topics)
    held = gateway.parts.messages
    fragment = part.fragment
    stored = StoredPart(
        owner_of(request.caller),
        part.topic,
        part.identification,
        fragment.number,
        not fragment.more,
        part.content.encode(),
        times.to_ms(gateway.now()),
        # The whole message has those of its first part.
        {} if fragment.number else part.namespaces,
        request.traceparent,
        part.as_text,
    )
    known = held.again(stored)
    if known is None:
        await _check(gateway, stored)
        if stored.last:
            check_rate(gateway, publisher, topics)
        offset = await gateway.parts.commit([stored])
        if why := held.refused(offset):
            raise _contradicts(stored, why)  # another gateway was faster
        known = held.complete.get(offset) or held.open.get((stored.owner, stored.identification))
        if known is not None:
            await _check_size(gateway, known, 0)  # others may have arrived at the same time
    if known is not None and known.at in held.complete:
        # A publisher that hangs up must not leave it half done.
        await asyncio.shield(asyncio.ensure_future(assemble(gateway, known)))


def check_alone(gateway: Gateway, request: Request, identification: str) -> None:
    """Raises InvalidRequest for a part that may be delivered alone if other parts of its message may not."""
    if (owner_of(request.caller), identification) in gateway.parts.messages.open:
        raise InvalidRequest(
            f"the message {identification!r} has parts that may not be delivered alone (third digit of Fragment), and "
            "others that may"
        )


async def _check(gateway: Gateway, part: StoredPart) -> None:
    held = gateway.parts.messages
    if why := held.contradiction(part):
        raise _contradicts(part, why)
    message = held.open.get((part.owner, part.identification))
    if message is not None:
        await _check_size(gateway, message, len(part.content))
        return
    if held.per_owner[part.owner] >= gateway.fragments.open:
        raise InvalidRequest(
            f"{held.per_owner[part.owner]} messages of this client lack parts, and fragments.open is "
            f"{gateway.fragments.open}: send the rest of those, or wait until they are given up "
            f"(fragments.timeout_s = {gateway.fragments.timeout_s:g})"
        )
    if len(part.content) > _most_bytes(gateway):
        raise _too_large(gateway, part.identification, len(part.content))


async def _check_size(gateway: Gateway, message: OpenMessage, more: int) -> None:
    if message.bytes + more > _most_bytes(gateway):
        await give_up(gateway, message, "size")
        raise _too_large(gateway, message.key[1], message.bytes + more)


def _most_bytes(gateway: Gateway) -> int:
    return gateway.fragments.max_bytes or gateway.settings.max_body_bytes


def _too_large(gateway: Gateway, identification: str, size: int) -> InvalidRequest:
    which = "fragments.max_bytes" if gateway.fragments.max_bytes else "gateway.max_body_bytes"
    return InvalidRequest(
        f"the parts of the message {identification!r} have {size} bytes with this one, and {which} is "
        f"{_most_bytes(gateway)}: it is given up; parts that may be delivered alone (third digit of Fragment 1) have "
        "no such limit"
    )


def _contradicts(part: StoredPart, why: str) -> InvalidRequest:
    return InvalidRequest(f"this cannot be part {part.number} of the message {part.identification!r}: {why}")


async def assemble(gateway: Gateway, message: OpenMessage) -> None:
    """Join the parts of a complete message and accept it, unless that was done; an unacceptable message is given up.

    Raises PeerError for an unacceptable message, and InfrastructureError if the caller has to repeat the call.
    """
    held = gateway.parts
    # Large ones one at a time: so there is one text of them in memory, however many are complete.
    large = ["assemble"] if message.bytes > SMALL else []
    # A repeated part may have started the same work.
    async with gateway.locks.hold_all([*large, ("assemble", message.at)]):
        if message.at not in held.messages.complete:
            return
        parts = await held.parts(message)
        if len(parts) < len(message.parts):
            lost = f"{len(message.parts) - len(parts)} parts are not in the log any more"
            await give_up(gateway, message, "lost", lost)
            raise InvalidRequest(f"the message {message.key[1]!r} cannot be put together: {lost}")
        try:
            await _accept_whole(gateway, message, parts)
        except PeerError as error:
            await give_up(gateway, message, "content", str(error))
            raise
        await held.commit([message.assembled()])


async def _accept_whole(gateway: Gateway, message: OpenMessage, parts: Sequence[StoredPart]) -> None:
    first, last = parts[0], next(each for each in parts if each.last)
    most = gateway.settings.max_elements
    content = b"".join(each.content for each in parts).decode()
    if all(each.as_text for each in parts):
        content = decoded_once(content)
    payload, kind = await in_thread_if_large(len(content), messages.joined, content, first.namespaces, most)
    identifier = derived_id(message.accepted_ms, b"%b\n%d" % (key_of(last), message.at))
    whole = Notification(
        identifier, message.topic, payload, message.accepted_ms, traceparent=first.traceparent, type=stored_type(kind)
    )
    await publish(gateway, PublishRequest([whole], None, accepted_ms=message.accepted_ms))


async def give_up(gateway: Gateway, message: OpenMessage, reason: Reason, detail: str = "") -> None:
    """Record in the log that the message is given up. Raises InfrastructureError."""
    record = message.given_up(reason, times.to_ms(gateway.now()), detail[:500])
    logger.warning(
        "the message %r for %s was given up (%s): it has the parts %s, it lacks %s%s",
        record.identification,
        record.topic,
        reason,
        record.had,
        record.missing or "none",
        f": {detail}" if detail else "",
    )
    await gateway.parts.commit([record])


async def maintain_forever(gateway: Gateway) -> None:
    """Run until cancelled, in one gateway: assemble abandoned messages, give up stalled ones."""
    what, pauses = "incomplete messages cannot be checked now", Backoff(_INTERVAL_S, _INTERVAL_S)
    await repeated(what, partial(maintain, gateway), _INTERVAL_S, pauses, InfrastructureError)


async def maintain(gateway: Gateway) -> None:
    """Do due work. Raises InfrastructureError."""
    held, now = gateway.parts.messages, gateway.parts.now()
    oldest_ms = times.to_ms(gateway.now()) - _OLDEST_MS
    for message in [each for each in held.complete.values() if now - each.seen >= _LEFT_S]:
        if message.since_ms < oldest_ms:
            await give_up(gateway, message, "lost", "it was complete, and could not be stored in all that time")
            continue
        try:
            await assemble(gateway, message)
        except ArborcastError as error:
            # After a failure the next round repeats it.
            logger.warning("the message %r is complete and was not accepted: %s", message.key[1], error)
    silent = gateway.fragments.timeout_s
    for message in [e for e in held.open.values() if now - e.seen >= silent or e.since_ms < oldest_ms]:
        await give_up(gateway, message, "time")
