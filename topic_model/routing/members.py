"""Many subscriptions in order, in pieces, so that a change costs one piece.

A popular topic may have a hundred thousand subscribers, with one added or removed per batch. Another thread may read a
returned sequence, so each change creates a new sequence, which shares all unchanged pieces with the previous one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import overload

from arborcast.topic_model.subscriptions import Subscription

PIECE = 512
"""Members of a piece; below twice as many, a tuple is as good."""


def order(subscription: Subscription) -> tuple[int, str]:
    """Sort key of members: the oldest first, by id within a millisecond."""
    return subscription.created_ms, subscription.id


Piece = tuple[Subscription, ...]


class Members(Sequence[Subscription]):
    """An immutable sequence of non-empty pieces."""

    __slots__ = ("_count", "_numbers", "pieces")

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self.pieces = tuple(filter(None, pieces))
        self._count = sum(map(len, self.pieces))
        self._numbers: dict[str, int] | None = None

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Subscription]:
        return chain.from_iterable(self.pieces)

    @overload
    def __getitem__(self, index: int) -> Subscription: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Subscription]: ...
    def __getitem__(self, index: int | slice) -> Subscription | Sequence[Subscription]:
        return tuple(self)[index]  # members are mostly iterated

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Members | tuple):
            return NotImplemented
        return len(self) == len(other) and all(one == another for one, another in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # unused, and would cost all members

    def number_of(self, subscription_id: str) -> int | None:
        """The number of a member's piece. The first call walks all members, so use it only for repeated calls."""
        if self._numbers is None:
            self._numbers = {member.id: number for number, piece in enumerate(self.pieces) for member in piece}
        return self._numbers.get(subscription_id)


Answer = Piece | Members
"""The recipients of a topic: a tuple for few, pieces for many."""


def answer_of(ordered: Piece) -> Answer:
    """These ordered members, in pieces if there are many."""
    if len(ordered) <= 2 * PIECE:
        return ordered
    return Members(ordered[begin : begin + PIECE] for begin in range(0, len(ordered), PIECE))


def joined(parts: Sequence[Answer]) -> Answer:
    """The members of all parts, concatenated."""
    if any(isinstance(part, Members) for part in parts):
        return Members(chain.from_iterable(part.pieces if isinstance(part, Members) else (part,) for part in parts))
    return tuple(chain.from_iterable(parts))


def weight(answer: Answer) -> int:
    """The number of references of an answer composed of others."""
    return len(answer.pieces) if isinstance(answer, Members) else len(answer)


def replaced(members: Answer, touched: Collection[str], present: Sequence[Subscription]) -> Answer:
    """These members without the touched ones (ids), with the present ones inserted in order."""
    if not isinstance(members, Members):
        return tuple(sorted((*(each for each in members if each.id not in touched), *present), key=order))
    pieces: list[Piece] = list(members.pieces)
    dirty = {number for each in touched if (number := members.number_of(each)) is not None}
    added: dict[int, list[Subscription]] = {}
    for each in present:
        number = _number_for(pieces, each)
        added.setdefault(number, []).append(each)
        dirty.add(number)
    for number in dirty:
        untouched = (each for each in pieces[number] if each.id not in touched)
        pieces[number] = tuple(sorted((*untouched, *added.get(number, ())), key=order))
    return Members(pieces)


class Pieces:
    """Members in order, with additions and removals; `active` returns the active ones as `Members`."""

    __slots__ = ("_active", "_answer", "_count", "_pieces")

    def __init__(self, ordered: Sequence[Subscription]) -> None:
        self._pieces = [list(ordered[begin : begin + PIECE]) for begin in range(0, len(ordered), PIECE)]
        self._active: list[Piece | None] = [None] * len(self._pieces)
        self._answer: Members | None = None
        self._count = len(ordered)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Subscription]:
        return chain.from_iterable(self._pieces)

    def active(self) -> Members:
        """The active members; the same object until a change."""
        if self._answer is None:
            for number, active in enumerate(self._active):
                if active is None:
                    self._active[number] = tuple([each for each in self._pieces[number] if each.receives])
            self._answer = Members(active for active in self._active if active)
        return self._answer

    def add(self, member: Subscription) -> None:
        number = _number_for(self._pieces, member)
        piece = self._pieces[number]
        insort(piece, member, key=order)
        self._changed(number, 1)
        if len(piece) > 2 * PIECE:
            self._pieces[number : number + 1] = [piece[:PIECE], piece[PIECE:]]
            self._active[number : number + 1] = [None, None]

    def remove(self, member: Subscription) -> Subscription:
        """Remove a member by its order key. ValueError if it is missing."""
        number = _number_for(self._pieces, member)
        taken = take_from(self._pieces[number], member)
        self._changed(number, -1)
        if not self._pieces[number] and len(self._pieces) > 1:
            del self._pieces[number], self._active[number]
        return taken

    def _changed(self, number: int, by: int) -> None:
        self._active[number] = self._answer = None
        self._count += by


def take_from(ordered: list[Subscription], member: Subscription) -> Subscription:
    """Remove a member from an ordered list. ValueError if it is missing."""
    at = bisect_left(ordered, order(member), key=order)
    if at == len(ordered) or ordered[at].id != member.id:
        raise ValueError(f"subscription {member.id!r} is not a member of its group")
    return ordered.pop(at)


def _number_for(pieces: Sequence[Sequence[Subscription]], member: Subscription) -> int:
    """The number of the piece that contains, or would contain, the member."""
    return max(bisect_right(pieces, order(member), key=_first) - 1, 0)


def _first(piece: Sequence[Subscription]) -> tuple[int, str]:
    return order(piece[0])
