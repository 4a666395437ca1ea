"""Accepting notifications, however they came in: once, of the types that their topics take, and stored in order."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from lxml import etree

from arborcast.ingest.access.grants import check_reserved
from arborcast.ingest.elements.publication import NOTHING_SAID, Publication
from arborcast.ingest.operations.gateway import AnswersPeers, Gateway
from arborcast.ingest.state.repeats import fingerprint
from arborcast.topic_model.records.notifications import MOST_PRIORITY, UNSTAMPED, Notification, type_of
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.tree.tree import TopicTree
from arborcast.wire import times
from arborcast.wire.errors import InvalidRequest

# Bytes of a payload that is written as canonical XML, which is done on the event loop: a few milliseconds. libxml2's
# time grows with the square of the namespace declarations.
_MOST_CANONICAL = 16 * 1024

NO_PUBLICATIONS: Mapping[str, Publication] = {}


async def accept(
    gateway: Gateway,
    notifications: Sequence[Notification],
    said: Mapping[str, Publication] = NO_PUBLICATIONS,
    accepted_ms: int | None = None,
    owner: str = "",
) -> bool:
    """Store the notifications of a request, in their order, however they came in; not those of a repeated request:
    False, they are stored under other ids. `said` is by id, and counts from when they are accepted: at this moment,
    or, of what has waited here, at `accepted_ms`. `owner` is the publisher, empty without authentication.

    Raises Forbidden for a topic of operator events; InvalidRequest for a type that its topic does not have, where that
    is asked; TopicNotSupported, TooManyTopics or another InfrastructureError.
    """
    check_reserved(each.topic for each in notifications)
    if gateway.topics.check_types:
        check_types(gateway.table.topics, notifications)
    request = b""
    if gateway.repeats.enabled:
        request = fingerprint(notifications, owner, [said.get(each.id, NOTHING_SAID) for each in notifications])
    if request:
        return await gateway.repeats.once(request, lambda: _store(gateway, notifications, said, request, accepted_ms))
    await _store(gateway, notifications, said, accepted_ms=accepted_ms)
    return True


def check_types(tree: TopicTree, notifications: Sequence[Notification]) -> None:
    """Raises InvalidRequest when a notification is of none of the types that its topic names; one that names none has
    them all."""
    for number, each in enumerate(notifications, start=1):
        record = tree.get(each.topic)
        if record is not None and record.message_types and type_of(each) not in record.message_types:
            raise InvalidRequest(
                f"message {number} is of the type {type_of(each):.200}, and the topic {each.topic:.200} takes "
                f"{' '.join(record.message_types):.500}"
            )


def merge_key(payload: bytes, key: str) -> bytes:
    """By what equal requests are known: the payload as exclusive canonical XML, a longer one byte for byte, and what
    the publisher has named them. Empty where the payload cannot be read."""
    if len(payload) > _MOST_CANONICAL:
        return hashlib.blake2b(key.encode() + b"\0\0" + payload, digest_size=16).digest()
    try:
        parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False)
        written = etree.tostring(etree.fromstring(payload, parser), method="c14n", exclusive=True, with_comments=False)
    except (etree.XMLSyntaxError, etree.C14NError):
        return b""
    return hashlib.blake2b(key.encode() + b"\0" + written, digest_size=16).digest()


def _accepted(
    notification: Notification,
    table: RoutingTable,
    said: Publication,
    facts: Mapping[str, Any],
    split_bytes: int,
    federation: AnswersPeers | None,
) -> Notification:
    """A notification as it is stored: `facts` are those of its request, the rest is what its publisher says of it, else
    what its topic does. `split_bytes` is for topics that say split."""
    tree = table.topics
    policy, priority = tree.policy(notification.topic), said.priority
    distribution, fast = "", False
    if federation is not None:
        # Where it was accepted first it was said where it goes, if it was said at all.
        distribution = notification.distribution or tree.distribution(notification.topic)
        fast = tree.is_fast(notification.topic, federation.inside_fast)
    if priority is None:
        # A directory may say more than there is.
        priority = max(-MOST_PRIORITY, min(policy.priority, MOST_PRIORITY))
    return msgspec.structs.replace(
        notification,
        prefixes=tree.prefixes.complete(notification.topic, notification.prefixes),
        valid_until_ms=said.until_ms(facts["accepted_ms"]),
        priority=priority,
        reliable=notification.reliable or policy.reliable,
        split_bytes=split_bytes if policy.split else 0,
        queue=policy.queue,
        merge=merge_key(notification.payload, said.merge) if policy.queue and policy.merge else b"",
        distribution=distribution,
        fast=fast,
        unchanged=UNSTAMPED if notification.only else table.changed_before(notification.topic),
        **facts,
    )


async def _store(
    gateway: Gateway,
    notifications: Sequence[Notification],
    said: Mapping[str, Publication],
    request: bytes = b"",
    accepted_ms: int | None = None,
) -> None:
    """`request` is what the request is recognised by; it is in each record, so that it is known after a restart."""
    # All topics first: between two messages of a request nothing may be awaited, or another request could get between.
    table = gateway.table
    if new := {each.topic: each.prefixes for each in notifications if each.topic not in table.topics}:
        await gateway.admit(new)
    await gateway.changes.keep_up()
    # It belongs to the subscriptions that are there now, whenever it is matched.
    accepted_ms = times.to_ms(gateway.now()) if accepted_ms is None else accepted_ms
    facts: dict[str, bytes | int] = {"control": table.position, "accepted_ms": accepted_ms}
    if request:
        facts |= {"request": request, "request_size": len(notifications)}
    split_bytes, federation = gateway.fragments.bytes, gateway.federation
    notifications = [
        _accepted(each, table, said.get(each.id, NOTHING_SAID), facts, split_bytes, federation)
        for each in notifications
    ]
    # The last of each topic that keeps it.
    retained = {each.topic: each for each in notifications if gateway.retains(each.topic)}
    context = notifications[0].traceparent
    if gateway.tracing is None or not context:
        await gateway.notifications.append(notifications, list(retained.values()))
        return
    with gateway.tracing.span("append", "producer", context, {"arborcast.notifications": len(notifications)}):
        await gateway.notifications.append(notifications, list(retained.values()))
