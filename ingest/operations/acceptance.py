"""Accepting notifications, however they came in: once, of the types that their topics take, and stored in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ingest.elements.publication import NOTHING_SAID, Publication
from ingest.errors import InvalidRequest
from ingest.operations.gateway import Gateway
from ingest.soap import times
from ingest.state.repeats import fingerprint
from topic_model.records.notifications import MOST_PRIORITY, Notification, type_of
from topic_model.topics import TopicPath
from topic_model.tree.tree import TopicTree

NO_PUBLICATIONS: Mapping[str, Publication] = {}


async def accept(
    gateway: Gateway, notifications: Sequence[Notification], said: Mapping[str, Publication] = NO_PUBLICATIONS
) -> bool:
    """Store the notifications of a request, in their order, however they came in; not those of a repeated request:
    False, they are stored under other ids. `said` is by id, and counts from when they are accepted.

    Raises InvalidRequest for a type that its topic does not have, where that is asked; TopicNotSupported, TooManyTopics
    or another InfrastructureError.
    """
    if gateway.topics.check_types:
        check_types(gateway.table.topics, notifications)
    request = fingerprint(notifications) if gateway.repeats.enabled else b""
    if request:
        return await gateway.repeats.once(request, lambda: _store(gateway, notifications, said, request))
    await _store(gateway, notifications, said)
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


def _priority(tree: TopicTree, topic: TopicPath, said: Publication) -> int:
    """What its publisher says, else what its topic does: a directory may say more than there is."""
    if said.priority is not None:
        return said.priority
    return max(-MOST_PRIORITY, min(tree.policy(topic).priority, MOST_PRIORITY))


async def _store(
    gateway: Gateway, notifications: Sequence[Notification], said: Mapping[str, Publication], request: bytes = b""
) -> None:
    """`request` is what the request is recognised by; it is in each record, so that it is known after a restart."""
    # All topics first: between two messages of a request nothing may be awaited, or another request could get between.
    await gateway.admit({notification.topic: notification.prefixes for notification in notifications})
    # It belongs to the subscriptions that are there now, whenever it is matched.
    accepted_ms = times.to_ms(gateway.now())
    accepted: dict[str, bytes | int] = {"control": gateway.table.position, "accepted_ms": accepted_ms}
    if request:
        accepted |= {"request": request, "request_size": len(notifications)}
    tree = gateway.table.topics
    notifications = [
        msgspec.structs.replace(
            each,
            prefixes=tree.prefixes.complete(each.topic, each.prefixes),
            valid_until_ms=said.get(each.id, NOTHING_SAID).until_ms(accepted_ms),
            priority=_priority(tree, each.topic, said.get(each.id, NOTHING_SAID)),
            reliable=each.reliable or tree.policy(each.topic).reliable,
            **accepted,
        )
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
