"""The interest of other engines, and the subscriptions that are links: a fold over the control log."""

from __future__ import annotations

from collections.abc import Iterator

from arborcast.topic_model.records.control import (
    ControlRecord,
    PeerInterest,
    SubscriptionEnded,
    SubscriptionRecord,
    Tombstone,
)
from arborcast.topic_model.routing.interest import merged

_NONE = PeerInterest("", "", 0, ())


class PeerInterests:
    """The last word of each engine of our group, and of each other group."""

    def __init__(self) -> None:
        self._there: dict[str, PeerInterest] = {}
        self.links: set[str] = set()
        """Ids of the subscriptions that are links."""

    def apply(self, record: ControlRecord) -> None:
        """Fold one record; other kinds are ignored."""
        match record:
            case PeerInterest(peer=peer):
                self._there[peer] = record
            case SubscriptionRecord(subscription=subscription):
                if subscription.peer is not None:
                    self.links.add(subscription.id)
            case SubscriptionEnded(id=identifier) | Tombstone(subject=("sub", identifier)):
                self.links.discard(identifier)
            case Tombstone(subject=("interest", peer)):
                self._there.pop(peer, None)

    def get(self, peer: str) -> PeerInterest | None:
        """That of one, as GROUP/NAME or GROUP/."""
        return self._there.get(peer)

    def topics(self, peer: str) -> tuple[str, ...]:
        """Its interest without that of other groups; empty before its first report."""
        return self._there.get(peer, _NONE).topics

    def all(self, peer: str) -> tuple[str, ...]:
        """Its whole interest."""
        found = self._there.get(peer, _NONE)
        return merged((found.topics, found.others))

    def __iter__(self) -> Iterator[PeerInterest]:
        return iter(self._there.values())
