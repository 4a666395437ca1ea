"""Registered publishers and their topics: a fold over the control log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from arborcast.core.security.uris import to_uri
from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.projections.owners import drop
from arborcast.topic_model.publishers import Registration
from arborcast.topic_model.records.control import (
    ControlRecord,
    RegistrationEnded,
    RegistrationRecord,
    Tombstone,
    registration_key,
)
from arborcast.topic_model.topics import TopicPath

_KEY = registration_key("")


class Registrations:
    """The current registrations, a function of the last record of each key."""

    def __init__(self) -> None:
        self._registrations: dict[str, Registration] = {}
        self._by_address: dict[str, set[str]] = {}
        self._owned: Counter[str] = Counter()

    def apply(self, record: ControlRecord) -> None:
        """Apply one record; records of other kinds are ignored."""
        match record:
            case RegistrationRecord(registration=registration):
                self._remove(registration.id)
                self._registrations[registration.id] = registration
                self._owned[registration.owner] += 1
                for address in _names(registration):
                    self._by_address.setdefault(address, set()).add(registration.id)
            case RegistrationEnded(id=registration_id):
                self._remove(registration_id)
            case Tombstone(key=key) if key.startswith(_KEY):
                self._remove(key.removeprefix(_KEY))

    def get(self, registration_id: str) -> Registration | None:
        return self._registrations.get(registration_id)

    def __iter__(self) -> Iterator[Registration]:
        return iter(self._registrations.values())

    def __len__(self) -> int:
        return len(self._registrations)

    def of_owner(self, owner: str) -> int:
        """The number of this owner's registrations."""
        return self._owned[owner]

    def due(self, now_ms: int) -> list[str]:
        """Ids of the expired registrations."""
        return [one.id for one in self._registrations.values() if one.expired(now_ms)]

    def known_as(self, address: str) -> list[Registration]:
        """The registrations with this address for their publisher, or for the engine's subscription at it."""
        return [self._registrations[one] for one in self._by_address.get(to_uri(address), ())]

    def _remove(self, registration_id: str) -> None:
        old = self._registrations.pop(registration_id, None)
        if old is None:
            return
        drop(self._owned, old.owner)
        for address in _names(old):
            same = self._by_address[address]
            same.discard(registration_id)
            if not same:
                del self._by_address[address]


def _names(registration: Registration) -> set[str]:
    names = {to_uri(upstream.reference.address) for upstream in registration.upstream}
    if registration.publisher is not None:
        names.add(to_uri(registration.publisher.address))
    return names


def permits(registration: Registration, topic: TopicPath, now_ms: int) -> bool:
    """Whether the registration is valid and covers the topic."""
    if registration.expired(now_ms):
        return False
    return not registration.topics or any(parse_normal(one.normal).matches(topic) for one in registration.topics)
