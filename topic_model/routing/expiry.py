"""Expired subscriptions and registrations: ids by the minute of their termination."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Protocol

_BITS = 16  # bits of a time in milliseconds left out of its bucket's number: about a minute
_SLACK = 1024  # stale entries that are not worth a sweep


class _Ends(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def terminates_ms(self) -> int | None: ...


class Expiry:
    """Termination times of a table's subscriptions, or of registrations.

    A heap with an entry per subscription would cost 80 bytes for each of a million; ids in buckets cost 9, and only
    those of buckets whose time has begun move to a heap. A renewal or an end leaves a stale entry, since a list cannot
    be searched; they are swept when half of all entries are stale, so a change takes constant time on average.
    """

    def __init__(self, subscriptions: Mapping[str, _Ends]) -> None:
        self._subscriptions = subscriptions
        self._buckets: dict[int, list[str]] = {}
        self._numbers: list[int] = []  # a heap of bucket numbers
        self._soon: list[tuple[int, str]] = []  # a heap of the times and ids of begun buckets
        self._begun = -1  # the number of the last begun bucket
        self._entries = 0
        self._live = 0

    def __len__(self) -> int:
        return self._entries

    def added(self, subscription: _Ends) -> None:
        """The subscription was added to the table."""
        if subscription.terminates_ms is None:
            return
        self._live += 1
        self._entries += 1
        number = subscription.terminates_ms >> _BITS
        if number <= self._begun:
            heapq.heappush(self._soon, (subscription.terminates_ms, subscription.id))
        else:
            if number not in self._buckets:
                heapq.heappush(self._numbers, number)
            self._buckets.setdefault(number, []).append(subscription.id)
        self._sweep_when_stale()

    def removed(self, subscription: _Ends) -> None:
        """The subscription, as in the table, was removed."""
        if subscription.terminates_ms is None:
            return
        self._live -= 1
        self._sweep_when_stale()

    def due(self, now_ms: int, limit: int) -> tuple[str, ...]:
        """Ids of the expired subscriptions, the earliest, up to this number. They stay until their end is applied."""
        self._begun = max(self._begun, now_ms >> _BITS)
        while self._numbers and self._numbers[0] <= self._begun:
            number = heapq.heappop(self._numbers)
            self._soon += [(time, subscription_id) for subscription_id, time in self._times(number).items()]
            heapq.heapify(self._soon)
            self._buckets.pop(number, None)
        found: list[tuple[int, str]] = []
        while self._soon and self._soon[0][0] <= now_ms and len(found) < limit:
            first = heapq.heappop(self._soon)
            if self._time(first[1]) == first[0] and first not in found[-1:]:
                found.append(first)
            else:
                self._entries -= 1
        for each in found:
            heapq.heappush(self._soon, each)
        return tuple(subscription_id for _, subscription_id in found)

    def _times(self, number: int) -> dict[str, int]:
        """The termination times of a bucket, without stale entries and duplicates; an empty bucket is removed."""
        times: dict[str, int] = {}
        bucket = self._buckets.pop(number)
        for subscription_id in bucket:
            time = self._time(subscription_id)
            if time is not None and time >> _BITS == number:
                times[subscription_id] = time
        self._entries += len(times) - len(bucket)
        if times:
            self._buckets[number] = list(times)
        return times

    def _time(self, subscription_id: str) -> int | None:
        subscription = self._subscriptions.get(subscription_id)
        return None if subscription is None else subscription.terminates_ms

    def _sweep_when_stale(self) -> None:
        if self._entries > 2 * self._live + _SLACK:
            before = len(self._soon)
            self._soon = sorted({each for each in self._soon if self._time(each[1]) == each[0]})
            self._entries += len(self._soon) - before
            self._numbers = [number for number in sorted(self._buckets) if self._times(number)]
