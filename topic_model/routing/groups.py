"""Groups: subscriptions of equal selector, stored once.

The first subscription of a selector may have to be compiled and linked; later ones join the group. Members are in the
order of (creation, id), which depends on the subscriptions only, so replicas agree after any compaction.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator

from arborcast.topic_model.routing.members import PIECE, Answer, Pieces, order, take_from
from arborcast.topic_model.routing.selectors import Selector
from arborcast.topic_model.subscriptions import Subscription

_INDEX_FROM = 16  # members; below this a search is faster than an index

# hash(identity) -> members: hashes, because identities are large.
_Identities = dict[int, tuple[Subscription, ...]]


class Group:
    """The members of one selector, active or not."""

    __slots__ = ("_active", "_identities", "_members")

    def __init__(self, members: Iterable[Subscription]) -> None:
        ordered = sorted(members, key=order)
        # A list for few, pieces for many: most groups have two members, and pieces would add 200 bytes to each.
        self._members: list[Subscription] | Pieces = ordered if len(ordered) <= 2 * PIECE else Pieces(ordered)
        self._active: tuple[Subscription, ...] | None = None
        # Built by the first search for an equal subscription.
        self._identities: _Identities | None = None

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Subscription]:
        """All members, in order."""
        return iter(self._members)

    def active(self) -> Answer:
        """The active members; the same object until a change."""
        if isinstance(self._members, Pieces):
            return self._members.active()
        if self._active is None:
            self._active = tuple(member for member in self._members if member.receives)
        return self._active

    def add(self, subscription: Subscription) -> None:
        if isinstance(self._members, Pieces):
            self._members.add(subscription)
        else:
            insort(self._members, subscription, key=order)
            if len(self._members) > 2 * PIECE:
                self._members = Pieces(self._members)
        self._active = None
        if self._identities is not None:
            _index(self._identities, subscription)

    def remove(self, subscription: Subscription) -> None:
        """Remove a member by its order key. ValueError if it is missing."""
        if isinstance(self._members, Pieces):
            member = self._members.remove(subscription)
            if len(self._members) < PIECE:
                self._members = list(self._members)
        else:
            member = take_from(self._members, subscription)
        self._active = None
        if self._identities is not None:
            _unindex(self._identities, member)

    def find_equal(self, subscription: Subscription) -> Subscription | None:
        """The first member with the same deliveries."""
        identity = subscription.identity()
        if self._identities is None and len(self._members) >= _INDEX_FROM:
            self._identities = {}
            for member in self._members:
                _index(self._identities, member)
        if self._identities is None:
            candidates: Iterable[Subscription] = self._members
        else:
            candidates = self._identities.get(hash(identity), ())
        return next((candidate for candidate in candidates if candidate.identity() == identity), None)


def _index(identities: _Identities, member: Subscription) -> None:
    key = hash(member.identity())
    identities[key] = tuple(sorted((*identities.get(key, ()), member), key=order))


def _unindex(identities: _Identities, member: Subscription) -> None:
    key = hash(member.identity())
    left = tuple(other for other in identities[key] if other.id != member.id)
    if left:
        identities[key] = left
    else:
        del identities[key]


class LinkedGroup(Group):
    """The members of a selector that is not simple, and the topics of its XPath."""

    __slots__ = ("definition", "linked_keys")

    def __init__(self, members: Iterable[Subscription], definition: Selector) -> None:
        super().__init__(members)
        self.definition = definition
        self.linked_keys: set[str] = set()


Entry = Subscription | Group
"""The entry of a table under a selector. A simple selector with one subscriber is that subscription itself, the usual
case of a million; a group would add 200 bytes to each. Also an unreadable selector, which matches nothing."""


def active_of(entry: Entry | None) -> Answer:
    """The active subscriptions of an entry."""
    if entry is None:
        return ()
    if isinstance(entry, Group):
        return entry.active()
    return (entry,) if entry.receives else ()


def members_of(entry: Entry | None) -> Iterator[Subscription]:
    """All subscriptions of an entry, in order."""
    if isinstance(entry, Group):
        yield from entry
    elif entry is not None:
        yield entry


def equal_in(entry: Entry | None, subscription: Subscription) -> Subscription | None:
    """The first subscription of an entry with the same deliveries."""
    if isinstance(entry, Group):
        return entry.find_equal(subscription)
    if entry is not None and entry.identity() == subscription.identity():
        return entry
    return None
