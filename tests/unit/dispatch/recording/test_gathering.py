from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import pyarrow as pa
import pytest

from arborcast.core.eventlog.client import ConsumerRecord
from arborcast.core.eventlog.follower import LogCursor
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.recording.follower import GatheringFollower


class Record:
    """One of a hundred bytes."""

    value = b"x" * 100


class ListedTail:
    """Has what it is given."""

    positions: Mapping[int, int] = {}

    def __init__(self) -> None:
        self.waiting: list[Record] = []
        self.asked = 0

    def read(self, limit: int, limit_bytes: int | None = None) -> Sequence[ConsumerRecord]:
        self.asked += 1
        found, self.waiting = self.waiting, []
        return cast("Sequence[ConsumerRecord]", found)


class Counting(GatheringFollower):
    """Gathers one row for each record; its clock is set by hand."""

    def __init__(self, interval_s: float) -> None:
        self.now, self.rows, self.written = 0.0, 0, 0
        super().__init__(KafkaSettings(), "attempts", (), interval_s, 1_000_000, lambda: self.now)
        self.tail = ListedTail()

    def look(self) -> None:
        self.step()

    def take(self, records: Sequence[ConsumerRecord]) -> None:
        self.rows += len(records)

    def _opened(self) -> LogCursor:
        return cast(LogCursor, self.tail)

    def _restart(self) -> None:
        raise AssertionError("the log is the same")

    def _gathered(self) -> Sequence[Sequence[pa.Table]]:
        return [[pa.table({"row": [each]}) for each in range(self.rows)]]

    def _extend(self, positions: Mapping[int, int]) -> int:
        self.written, self.rows = self.written + self.rows, 0
        return self.written


@pytest.mark.parametrize(("interval_s", "pause_s"), [(5.0, 3.0), (1.0, 1.0)])
def test_a_log_in_which_nothing_comes_is_looked_at_seldom(interval_s: float, pause_s: float) -> None:
    follower = Counting(interval_s)
    follower.look()
    for _ in range(10):
        follower.look()
    assert follower.tail.asked == 1
    follower.now = pause_s
    follower.look()
    assert follower.tail.asked == 2


def test_while_something_comes_or_waits_to_be_written_it_is_looked_at_each_time() -> None:
    follower = Counting(5.0)
    for second in range(5):
        follower.now = float(second)
        follower.tail.waiting = [Record()] if second < 2 else []
        follower.look()
    assert (follower.tail.asked, follower.rows, follower.written) == (5, 2, 0)
    follower.now = 5.0
    follower.look()
    assert (follower.rows, follower.written) == (0, 2)


def test_what_comes_after_a_pause_is_written_no_later_than_its_interval() -> None:
    follower = Counting(5.0)
    follower.look()
    follower.now = 100.0
    follower.look()
    follower.tail.waiting = [Record()]
    for tenth in range(31):
        follower.now = 100.0 + tenth / 10
        follower.look()
    assert follower.written == 1
