"""Registered publishers and their topics: a fold over the control log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress

from arborcast.core.errors import ExpressionError
from arborcast.core.security.uris import to_uri
from arborcast.topic_model.patterns.alternatives import UNIVERSAL_ROOT, Alternative, Reach, anchors_above
from arborcast.topic_model.patterns.patterns import EVERYTHING, parse_normal
from arborcast.topic_model.projections.owners import discard, drop
from arborcast.topic_model.publishers import Registration
from arborcast.topic_model.records.control import ControlRecord, RegistrationEnded, RegistrationRecord, Tombstone
from arborcast.topic_model.routing.expiry import Expiry
from arborcast.topic_model.topics import TopicPath, last_step


class Registrations:
    """The current registrations, a function of the last record of each key."""

    def __init__(self) -> None:
        self._registrations: dict[str, Registration] = {}
        self._expiry = Expiry(self._registrations)
        # Patterns by the id and their keys: each notification is tested, and a publisher may register thousands.
        self._patterns: dict[str, Mapping[str, tuple[str, ...]]] = {}
        self._by_address: dict[str, dict[str, set[str]]] = {}  # ids by the address and these keys
        self._owned: Counter[str] = Counter()

    def apply(self, record: ControlRecord) -> None:
        match record:
            case RegistrationRecord(registration=registration):
                self._remove(registration.id)
                self._registrations[registration.id] = registration
                self._expiry.added(registration)
                self._owned[registration.owner] += 1
                patterns = self._patterns[registration.id] = _patterns(registration)
                for address in _names(registration):
                    of_address = self._by_address.setdefault(address, {})
                    for key in patterns:
                        of_address.setdefault(key, set()).add(registration.id)
            case RegistrationEnded(id=registration_id) | Tombstone(subject=("pub", registration_id)):
                self._remove(registration_id)

    def get(self, registration_id: str) -> Registration | None:
        return self._registrations.get(registration_id)

    def __iter__(self) -> Iterator[Registration]:
        return iter(self._registrations.values())

    def __len__(self) -> int:
        return len(self._registrations)

    def of_owner(self, owner: str) -> int:
        """The number of this owner's registrations."""
        return self._owned[owner]

    def due(self, now_ms: int, limit: int) -> tuple[str, ...]:
        """Ids of the expired registrations, the earliest, up to this number."""
        return self._expiry.due(now_ms, limit)

    def is_known(self, address: str) -> bool:
        """Whether a registration has this address for its publisher, or for the engine's subscription at it."""
        return to_uri(address) in self._by_address

    def known_as(self, address: str, topic: TopicPath) -> Iterator[Registration]:
        """The registrations of a known address with a pattern whose anchor is this topic or above it, and whose last
        name is that of the topic, if it has one."""
        of_address = self._by_address.get(to_uri(address), {})
        for key in _keys_above(topic):
            yield from map(self._registrations.__getitem__, of_address.get(key, ()))

    def permits(self, registration: Registration, topic: TopicPath, now_ms: int) -> bool:
        """Whether the current registration is valid and covers the topic."""
        if registration.expired(now_ms):
            return False
        patterns = self._patterns[registration.id]
        normals = (normal for key in _keys_above(topic) for normal in patterns.get(key, ()))
        return any(parse_normal(normal).matches(topic) for normal in normals)

    def _remove(self, registration_id: str) -> None:
        old = self._registrations.pop(registration_id, None)
        if old is None:
            return
        self._expiry.removed(old)
        drop(self._owned, old.owner)
        patterns = self._patterns.pop(registration_id)
        for address in _names(old):
            of_address = self._by_address[address]
            for key in patterns:
                discard(of_address, key, registration_id)
            if not of_address:
                del self._by_address[address]


def _names(registration: Registration) -> set[str]:
    names = {to_uri(upstream.reference.address) for upstream in registration.upstream}
    if registration.publisher is not None:
        names.add(to_uri(registration.publisher.address))
    return names


def _patterns(registration: Registration) -> dict[str, tuple[str, ...]]:
    """The normal forms of the topics by their keys; without those that cannot be read."""
    patterns: dict[str, tuple[str, ...]] = {} if registration.topics else {UNIVERSAL_ROOT: (EVERYTHING,)}
    for topic in registration.topics:
        with suppress(ExpressionError):
            for key in {_key(one) for one in parse_normal(topic.normal).alternatives}:
                patterns[key] = (*patterns.get(key, ()), topic.normal)
    return patterns


def _key(one: Alternative) -> str:
    """The anchor, and the name of all selected topics if they have one."""
    name = one.rest[-1].name if one.rest and one.reach is Reach.SELF else None
    return one.anchor if name is None else f"{one.anchor} {name}"


def _keys_above(topic: TopicPath) -> Iterator[str]:
    """The keys of the alternatives that may select the topic."""
    name = last_step(topic).rpartition("}")[2]
    for anchor in (topic, *anchors_above(topic)):
        yield anchor
        yield f"{anchor} {name}"
