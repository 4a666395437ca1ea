"""What a task reads ahead of what Spark hands on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import pyarrow as pa
import pytest

from arborcast.dispatch.realtime import worker
from arborcast.dispatch.realtime.worker import _Rows

T = TypeVar("T")


class Full(Exception):
    """There is no room, and nobody makes any."""


class Room(threading.Condition):
    """Does not wait."""

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        if not (found := predicate()):
            raise Full
        return found


def batches(size: int) -> Iterator[pa.RecordBatch]:
    for offset in range(5_000):
        columns = [pa.array([b"x" * size]), pa.array([0]), pa.array([offset], pa.int64())]
        yield pa.RecordBatch.from_arrays(columns, ["value", "partition", "offset"])


@pytest.mark.parametrize(
    ("size", "count"),
    [(10, worker._AHEAD), (1024 * 1024, 16), (worker._AHEAD_BYTES + 1, 1)],
    ids=["small", "large", "larger than there is room"],
)
def test_rows_are_read_ahead_by_number_and_by_bytes(size: int, count: int) -> None:
    rows = _Rows(batches(size), lambda: None)
    cast(Any, rows)._room = Room()
    rows._read()
    assert isinstance(rows.error, Full)
    assert len(rows._rows) == count
    for _ in range(count):
        rows.drop_first()
    assert rows.over
    assert rows._bytes == rows._dropped
