"""What Spark says about a query's last batch, asked for in one call: no listener, so that a batch pays nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True)
class Progress:
    """The last batch that is done: its number, its rows, where it ended in each partition of its log, and how many
    seconds Spark spent on each of its own stages."""

    batch: int = -1
    rows: int = 0
    settled: Mapping[int, int] = field(default_factory=dict)
    stages: Mapping[str, float] = field(default_factory=dict)


def progress_of(query: StreamingQuery | None) -> Progress | None:
    """The progress of a query; None while there is none."""
    if query is None:
        return None
    try:
        found: Any = query._jsq.lastProgress()  # noqa: SLF001  # the public one makes a call for every value in it
        return None if found is None else read_progress(str(found.json()))
    except Exception:
        return None  # the query is about to end, or Spark with it, or the JVM: whatever py4j calls that


def read_progress(text: str) -> Progress:
    """Reads Spark's JSON."""
    document = json.loads(text)
    settled: dict[int, int] = {}
    for source in document["sources"]:
        end = source["endOffset"]
        topics = json.loads(end) if isinstance(end, str) else end or {}
        for offsets in topics.values():
            settled |= {int(partition): int(offset) for partition, offset in offsets.items()}
    return Progress(
        batch=int(document["batchId"]),
        rows=int(document["numInputRows"]),
        settled=settled,
        stages={name: milliseconds / 1000 for name, milliseconds in document["durationMs"].items()},
    )
