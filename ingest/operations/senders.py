"""Which registration a notification comes from.

Any of these tells it: the request was posted to the registration's own address (the ConsumerReference of the answer to
RegisterPublisher, where registration is required); the message's ProducerReference has the address that was registered
as PublisherReference; its SubscriptionReference is our subscription at that publisher. All are as good as the network
lets them be: whoever can read a reference can repeat it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from core.errors import UnknownResource
from ingest.addresses import Kind, Target
from ingest.errors import NotRegistered
from ingest.operations.gateway import Gateway
from ingest.soap import times
from ingest.soap.envelope import Request
from topic_model.namespaces import wsa, wsnt
from topic_model.projections.registrations import permits
from topic_model.records.notifications import Notification
from topic_model.topics import TopicPath


def check_sender(gateway: Gateway, request: Request, target: Target, notifications: Sequence[Notification]) -> None:
    """See that the sender of a Notify may publish all of it; see `check_topics`."""
    if gateway.settings.requires_registration or target.kind is Kind.REGISTRATION:
        topics = (notification.topic for notification in notifications)
        check_topics(gateway, target, zip(topics, _senders(request), strict=True))


def check_topics(gateway: Gateway, target: Target, sent: Iterable[tuple[TopicPath, Iterable[str]]]) -> None:
    """Each topic comes with the addresses that may tell where it comes from.

    Raises UnknownResource when the request went to a registration that is not in force, NotRegistered when no
    registration of the sender covers a topic and the settings require one.
    """
    now_ms = times.to_ms(gateway.now())
    named = gateway.registrations.get(target.id) if target.kind is Kind.REGISTRATION else None
    if target.kind is Kind.REGISTRATION and (named is None or named.expired(now_ms)):
        raise UnknownResource(f"there is no registration {target.id[:200]!r} (any more)", target.id)
    if not gateway.settings.requires_registration:
        return
    for topic, addresses in sent:
        known = [one for address in addresses for one in gateway.registrations.known_as(address)]
        if named is not None:
            known.append(named)
        if not any(permits(one, topic, now_ms) for one in known):
            raise NotRegistered(
                f"only registered publishers may publish here, and no registration of this one covers the topic {topic}"
                if known
                else "only registered publishers may publish here: send RegisterPublisher, then Notify to the "
                "ConsumerReference of the answer, or with a wsnt:ProducerReference equal to the PublisherReference"
            )


def _senders(request: Request) -> Iterator[list[str]]:
    for message in request.operation.iterchildren(wsnt("NotificationMessage")):
        references = message.iterchildren(wsnt("ProducerReference"), wsnt("SubscriptionReference"))
        yield [
            (address.text or "").strip()
            for reference in references
            for address in reference.iterdescendants(wsa("Address"))
        ]
