"""Caches of recently used values by an external key, such as a subscriber's address or a subscription's id.

Their number is unbounded, and a worker gets no notice of their removal. So the cache is bounded in bytes and age.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")

# Bytes of an entry beyond its key and value.
_ENTRY_BYTES = 200


class Recent(Generic[_K, _V]):
    """A cache of two generations, each of at most `max_bytes` bytes, or one entry. Used by one thread.

    When the younger generation is full, or `age_s` seconds old, the older one is dropped as a whole. An entry that is
    not read is dropped after at most twice that time, as long as other entries are read or set.
    """

    def __init__(self, max_bytes: int, age_s: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = max_bytes
        self._age_s = age_s
        self._clock = clock
        self._young: dict[_K, tuple[_V, int]] = {}
        self._old: dict[_K, tuple[_V, int]] = {}
        self._free_bytes = max_bytes
        self._until = clock() + age_s

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())

    def get(self, key: _K) -> _V | None:
        """The value of a recently set key; None if there is none."""
        if self._clock() >= self._until:
            self._rotate()
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is None:
                return None
            self.put(key, *found)
        return found[0]

    def put(self, key: _K, value: _V, size: int) -> None:
        """Store a value; `size` is its approximate size in bytes, with its key."""
        # By age, too: where reads are rare, as those of ids for repetitions, the next read would drop new entries.
        if self._clock() >= self._until or (self._young and self._free_bytes < size + _ENTRY_BYTES):
            self._rotate()
        self._free_bytes -= size + _ENTRY_BYTES
        self._young[key] = value, size

    def _rotate(self) -> None:
        now = self._clock()
        # Without a use for a long time, the young generation is out of date too.
        self._old = self._young if now < self._until + self._age_s else {}
        self._young = {}
        self._free_bytes = self._limit
        self._until = now + self._age_s


class BoundedDict(OrderedDict[_K, _V]):
    """A dict of at most `max_entries` entries; it drops the least recently set one."""

    def __init__(self, max_entries: int) -> None:
        super().__init__()
        self._limit = max_entries

    def __setitem__(self, key: _K, value: _V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._limit:
            self.popitem(last=False)
