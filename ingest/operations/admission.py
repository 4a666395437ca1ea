"""Admission of new topics by notifications, in open topic sets.

Topics cost memory in every process and an entry in the directory: without bounds a publisher with a counter in its
topic names would fill the tree. So the set has a maximum size and a maximum rate of growth.

A publisher that exhausts the rate must not block notifications that have subscribers. So topics that a subscription
names are always added: each costs a subscription. Topics that match a subscription's wildcard have a rate of their own;
otherwise a subscription to all topics would remove the bound.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from arborcast.core.errors import TopicNotSupported
from arborcast.ingest.settings import TopicSettings
from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.topics import TopicPath, ancestors
from arborcast.wire.errors import TooManyTopics

_WINDOW_S = 60


class _Minute:
    """New topics of the last sixty seconds."""

    def __init__(self) -> None:
        self._seconds: OrderedDict[int, int] = OrderedDict()
        self.count = 0

    def forget_before(self, last: int) -> None:
        """Forget that second, and all before it."""
        while self._seconds and (second := next(iter(self._seconds))) <= last:
            self.count -= self._seconds.pop(second)

    def add(self, second: int, number: int) -> None:
        """Count this number of topics, or (negative) return topics that were counted in that second."""
        if number > 0 or second in self._seconds:
            self._seconds[second] = self._seconds.get(second, 0) + number
            self.count += number

    def full_for_s(self, number: int, now_s: float) -> float:
        """The time until this number of counted topics has left the window."""
        for second, there in self._seconds.items():
            number -= there
            if number <= 0:
                return second + _WINDOW_S - now_s
        return _WINDOW_S


@dataclass(frozen=True)
class Admitted:
    """Topics that may be added together: `records` add them, and they are counted until they are returned."""

    records: list[TopicRecord]
    second: int
    unreached: int
    reached: int


class TopicAdmission:
    """Counts the topics that this gateway added in each of the last sixty seconds."""

    def __init__(self, settings: TopicSettings) -> None:
        self._settings = settings
        self._unreached = _Minute()
        self._reached = _Minute()

    def check(self, table: RoutingTable, paths: Iterable[TopicPath], now_s: float) -> Admitted:
        """The result of `admit` without counting; `now_s` is any monotonic clock.

        Only the topics themselves are added; nodes above them stay nodes. Raises TopicNotSupported with the reason, and
        TooManyTopics if they may be added later.
        """
        unknown = [path for path in dict.fromkeys(paths) if path not in table.topics]
        for path in unknown:
            self._check(table, path)
        if not unknown:
            return Admitted([], 0, 0, 0)
        maximum, there = self._settings.maximum, len(table.topics)
        if there + len(unknown) > maximum:
            first = unknown[max(0, maximum - there)]
            raise TopicNotSupported(
                f"there is no topic {first}, and a notification cannot add it: there are {there} topics, and "
                f"topics.maximum is {maximum}",
            )
        reached = unreached = 0
        for number, path in enumerate(unknown):
            if table.is_named(path):
                continue
            rest = len(unknown) - number - 1
            if table.is_reached(path):
                reached += 1
                self._check_room(self._reached, reached, rest, path, now_s)
            else:
                unreached += 1
                self._check_room(self._unreached, unreached, rest, path, now_s)
        return Admitted([TopicRecord(path) for path in unknown], int(now_s), unreached, reached)

    def admit(self, table: RoutingTable, paths: Iterable[TopicPath], now_s: float) -> Admitted:
        """Count all of them, or raise as `check` and count none."""
        admitted = self.check(table, paths, now_s)
        self._unreached.add(admitted.second, admitted.unreached)
        self._reached.add(admitted.second, admitted.reached)
        return admitted

    def give_back(self, admitted: Admitted) -> None:
        """They could not be added."""
        self._unreached.add(admitted.second, -admitted.unreached)
        self._reached.add(admitted.second, -admitted.reached)

    def _check(self, table: RoutingTable, path: TopicPath) -> None:
        if self._settings.fixed:
            raise TopicNotSupported(f"there is no topic {path}, and the topic set is fixed")
        for above in ancestors(path):
            record = table.topics.get(above)
            if record is not None and record.final:
                raise TopicNotSupported(f"the topic {above} is final: there cannot be {path} below it")

    def _check_room(self, minute: _Minute, new: int, rest: int, path: TopicPath, now_s: float) -> None:
        # At the first topic beyond the bound, so that refusals are cheap. The `rest` may contain known topics.
        limit = self._settings.new_per_minute
        if new > limit:
            # A later attempt would be refused, too.
            raise TopicNotSupported(
                f"there is no topic {path}, and a notification cannot add it: this is new topic number {new} of one "
                f"Notify, and topics.new_per_minute is {limit}",
            )
        minute.forget_before(int(now_s) - _WINDOW_S)
        if minute.count + new > limit:
            wait_s = math.ceil(minute.full_for_s(minute.count + min(new + rest, limit) - limit, now_s))
            raise TooManyTopics(
                f"there is no topic {path}, and a notification cannot add it now: {minute.count} topics were added in "
                f"the last minute, and topics.new_per_minute is {limit}; try again in {wait_s} s",
                wait_s,
            )
