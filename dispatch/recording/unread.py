"""Which records of a log a table has, and which it does not have yet. Pure.

A table says by itself how far it has come, by the log's own offsets: a batch that Spark repeats, or plans in another
way after a crash, or a query that begins again far back, adds nothing twice and leaves nothing out.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc


def unread(logged: pa.Table, reached: Mapping[int, int]) -> pa.Table:
    """Those of the records (columns `partition` and `offset` among others) that come at or after these positions."""
    first = _by_partition(logged, "min")
    if all(offset >= reached.get(partition, 0) for partition, offset in first.items()):
        return logged
    partitions = pa.array(reached, pa.int32())
    positions = pa.array(reached.values(), pa.int64())
    known = pc.take(positions, pc.index_in(logged["partition"].cast(pa.int32()), partitions))
    return logged.filter(pc.greater_equal(logged["offset"], pc.fill_null(known, 0)))


def further(logged: pa.Table, reached: Mapping[int, int]) -> dict[int, int]:
    """The positions after these records; from partition 0 on each has one."""
    last = _by_partition(logged, "max")
    positions = {**reached, **{each: max(offset + 1, reached.get(each, 0)) for each, offset in last.items()}}
    return {each: positions.get(each, 0) for each in range(max(positions, default=-1) + 1)}


def _by_partition(logged: pa.Table, function: str) -> dict[int, int]:
    found = logged.group_by("partition", use_threads=False).aggregate([("offset", function)])
    return dict(zip(found["partition"].to_pylist(), found[f"offset_{function}"].to_pylist(), strict=True))
