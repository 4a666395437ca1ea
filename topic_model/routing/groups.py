"""Groups: subscriptions of equal selector, stored once.

The first subscription to a selector may have to be compiled and linked; the second to the millionth only joins the
group. Members are in the order of (creation, id): a function of the subscriptions alone, so that replicas agree however
much of the log was compacted away before they read it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator

from arborcast.topic_model.routing.members import PIECE, Answer, Pieces, order, take_from
from arborcast.topic_model.routing.selectors import Selector
from arborcast.topic_model.subscriptions import Subscription

_INDEX_FROM = 16  # members; below this a search compares faster than an index could be built

# hash(identity) -> members: hashes, because identities are large.
_Identities = dict[int, tuple[Subscription, ...]]


class Group:
    """The members of one selector, those among them that do not receive."""

    __slots__ = ("_active", "_identities", "_members")

    def __init__(self, members: Iterable[Subscription]) -> None:
        ordered = sorted(members, key=order)
        # A list of few, pieces of many: most groups have two members, and pieces would add 200 bytes to each.
        self._members: list[Subscription] | Pieces = ordered if len(ordered) <= 2 * PIECE else Pieces(ordered)
        self._active: tuple[Subscription, ...] | None = None
        # Once somebody looked for an equal one.
        self._identities: _Identities | None = None

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Subscription]:
        """All members, in order."""
        return iter(self._members)

    def active(self) -> Answer:
        """The members that receive; the same object until something changes."""
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
        """Take out a member, found by its order key. ValueError when there is none."""
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
        """The first member that would deliver the same in the same way."""
        wanted = subscription.identity()
        if self._identities is None and len(self._members) >= _INDEX_FROM:
            self._identities = {}
            for member in self._members:
                _index(self._identities, member)
        if self._identities is None:
            candidates: Iterable[Subscription] = self._members
        else:
            candidates = self._identities.get(hash(wanted), ())
        return next((candidate for candidate in candidates if candidate.identity() == wanted), None)


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
    """The members of a selector that is not simple, and the topics that its XPath selects.

    `definition` is None when the selector cannot be read: its members are there, but nothing leads to them.
    """

    __slots__ = ("definition", "linked_keys")

    def __init__(self, members: Iterable[Subscription], definition: Selector | None) -> None:
        super().__init__(members)
        self.definition = definition
        self.linked_keys: set[str] = set()


Entry = Subscription | Group
"""What a table keeps under a selector. A simple selector with one subscriber is that subscription itself: a million of
those is the normal case, and a group would add 200 bytes to each."""


def active_of(entry: Entry | None) -> Answer:
    """The subscriptions behind an entry that receive."""
    if entry is None:
        return ()
    if isinstance(entry, Group):
        return entry.active()
    return (entry,) if entry.receives else ()


def members_of(entry: Entry | None) -> Iterator[Subscription]:
    """All subscriptions behind an entry, in order."""
    if isinstance(entry, Group):
        yield from entry
    elif entry is not None:
        yield entry


def equal_in(entry: Entry | None, subscription: Subscription) -> Subscription | None:
    """The first subscription behind an entry that would deliver the same in the same way."""
    if isinstance(entry, Group):
        return entry.find_equal(subscription)
    if entry is not None and entry.identity() == subscription.identity():
        return entry
    return None
