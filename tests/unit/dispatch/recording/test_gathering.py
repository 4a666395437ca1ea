from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from arborcast.core.eventlog.client import ConsumerRecord
from arborcast.core.eventlog.follower import LogCursor
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.recording.follower import GatheringFollower


class Counting(GatheringFollower):
    """Gathers one row for each record; its clock is set by hand. It reads what is put into `waiting`."""

    def __init__(self, interval_s: float) -> None:
        self.now, self.rows, self.written, self.reads = 0.0, 0, 0, 0
        self.waiting: list[Any] = []
        super().__init__(KafkaSettings(), "attempts", (), interval_s, 1_000_000, lambda: self.now)

    def look(self, at: float, records: int = 0) -> None:
        self.now = at
        self.waiting = [SimpleNamespace(value=b"x" * 100)] * records
        self.step()

    def read(self, limit: int, limit_bytes: int | None = None) -> Sequence[ConsumerRecord]:
        self.reads += 1
        found, self.waiting = self.waiting, []
        return found

    def take(self, records: Sequence[ConsumerRecord]) -> None:
        self.rows += len(records)

    def _opened(self) -> LogCursor:
        return cast(LogCursor, SimpleNamespace(read=self.read, positions={}))

    def _restart(self) -> None:
        raise AssertionError("the log is the same")

    def _gathered(self) -> Sequence[Sequence[pa.Table]]:
        return [[pa.table({"row": [each]}) for each in range(self.rows)]]

    def _extend(self, positions: Mapping[int, int]) -> int:
        self.written, self.rows = self.written + self.rows, 0
        return self.written


@pytest.mark.parametrize(("interval_s", "pause_s"), [(5.0, 3.0), (1.0, 1.0)])
def test_a_log_without_new_records_is_read_seldom(interval_s: float, pause_s: float) -> None:
    follower = Counting(interval_s)
    for _ in range(11):
        follower.look(0.0)
    assert follower.reads == 1
    follower.look(pause_s)
    assert follower.reads == 2


def test_while_records_come_or_wait_it_is_read_each_time() -> None:
    follower = Counting(5.0)
    for second in range(5):
        follower.look(second, records=second < 2)
    assert (follower.reads, follower.rows, follower.written) == (5, 2, 0)
    follower.look(5.0)
    assert (follower.rows, follower.written) == (0, 2)


def test_a_record_after_a_pause_is_written_within_the_interval() -> None:
    follower = Counting(5.0)
    follower.look(0.0)
    follower.look(100.0)
    for tenth in range(31):
        follower.look(100.0 + tenth / 10, records=1 if not follower.rows + follower.written else 0)
    assert follower.written == 1
