"""The busiest topics: whose notifications are the newest in the log."""

from __future__ import annotations

import time
from collections import Counter
from typing import NamedTuple

from arborcast.core.eventlog.consumer import LogConsumer
from arborcast.core.settings import KafkaSettings

# Of each partition. Keys are counted and payloads thrown away, but they have to come.
_LOOKED_AT = 500

_PATIENCE_S = 2.0


class Busiest(NamedTuple):
    """Topics with how many of the newest notifications they have; how many these are, and since when (ms)."""

    topics: list[tuple[str, int]]
    of: int = 0
    since_ms: int = 0


def busiest(kafka: KafkaSettings, most: int) -> Busiest:
    """The topics of the newest notifications, the busiest first. Raises InfrastructureError."""
    # Payloads may be large, and there are as many as were asked for in memory at once.
    log = LogConsumer(kafka, "notifications", max_records=50)
    try:
        ends, begins = log.ends(_PATIENCE_S), log.beginnings(_PATIENCE_S)
        positions = {number: max(begins[number], end - _LOOKED_AT) for number, end in ends.items()}
        log.seek(positions)
        counted: Counter[str] = Counter()
        since_ms, deadline = 0, time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline and any(log.positions()[number] < end for number, end in ends.items()):
            for records in log.poll(0.2).values():
                for record in records:
                    counted[record.key.decode() if record.key else ""] += 1
                    since_ms = min(since_ms or record.timestamp, record.timestamp)
    finally:
        log.close()
    return Busiest(counted.most_common(most), counted.total(), since_ms)
