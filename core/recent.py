"""Recently used values by a key from outside: the address of a subscriber, the id of a subscription.

Such keys appear without end, and a worker gets no notice of their removal. So the memory is bounded in bytes and age
instead of entries.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")

# What an entry costs beside what it holds.
_ENTRY = 200


class Recent(Generic[_K, _V]):
    """A memory of two generations, each of at most `most` bytes, or one entry. Used by one thread.

    When the younger generation is full, or `age_s` seconds old, the older one is dropped as a whole. An entry that is
    not read is dropped after at most twice that time, as long as other entries are read.
    """

    def __init__(self, most: int, age_s: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._age_s = age_s
        self._clock = clock
        self._young: dict[_K, tuple[_V, int]] = {}
        self._old: dict[_K, tuple[_V, int]] = {}
        self._left = most
        self._until = clock() + age_s

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())

    def get(self, key: _K) -> _V | None:
        """The value that was put there lately."""
        if self._clock() >= self._until:
            self._turn()
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is None:
                return None
            self.put(key, *found)
        return found[0]

    def put(self, key: _K, value: _V, size: int) -> None:
        """Remember a value that takes about so many bytes with its key."""
        if self._young and self._left < size + _ENTRY:
            self._turn()
        self._left -= size + _ENTRY
        self._young[key] = value, size

    def _turn(self) -> None:
        now = self._clock()
        # After a long time without a question the young generation is old by the clock.
        self._old = self._young if now < self._until + self._age_s else {}
        self._young = {}
        self._left = self._most
        self._until = now + self._age_s


class BoundedDict(OrderedDict[_K, _V]):
    """At most `most` entries: the one that was set longest ago goes first."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: _K, value: _V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)
