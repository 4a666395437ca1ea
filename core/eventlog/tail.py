"""Following a log of one or many partitions, from where the reader was."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from core.errors import InfrastructureError
from core.eventlog.client import RETRY_AFTER_S, ConsumerRecord
from core.eventlog.consumer import LogConsumer, Replaced
from core.eventlog.settings import KafkaSettings

# Where bytes count: so many of the largest ones are not too many yet.
_RECORDS_AT_ONCE = 64


class Tail:
    """The records of a log that come after given positions (the next offset, by partition); without one, from the
    log's beginning. Used by one thread. Raises InfrastructureError while the broker is away, Replaced when the log ends
    before what somebody has `seen` of it."""

    def __init__(
        self, kafka: KafkaSettings, name: str, positions: Mapping[int, int], seen: Mapping[int, int] | None = None
    ) -> None:
        self._log = LogConsumer(kafka, name)
        self._positions = dict(positions)
        self._seen = positions if seen is None else seen

    @property
    def positions(self) -> Mapping[int, int]:
        """The next offset of each partition that has been read from."""
        return self._positions

    def read(self, limit: int, limit_bytes: int | None = None) -> Sequence[ConsumerRecord]:
        """What is in the log now and has not been read, about `limit` records or so many bytes at most; in order by
        partition."""
        try:
            return self._read(limit, limit_bytes)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free the connection; a later read opens another."""
        self._log.close()

    def _read(self, limit: int, limit_bytes: int | None) -> list[ConsumerRecord]:
        ends = self._log.ends()
        # Somebody may have given the log more partitions.
        if not self._log.placed or ends.keys() != self._log.positions().keys():
            self._place(ends)
        deadline = time.monotonic() + self._log.kafka.request_timeout_s
        found: list[ConsumerRecord] = []
        size = 0
        while len(found) < limit and any(self._log.positions()[number] < end for number, end in ends.items()):
            at_once = limit if limit_bytes is None else _RECORDS_AT_ONCE
            polled = self._log.poll(0.5, max_records=min(at_once, limit - len(found)))
            for records in polled.values():
                found.extend(records)
                size += sum(len(each.value or b"") for each in records) if limit_bytes is not None else 0
            if limit_bytes is not None and size >= limit_bytes:
                break
            if time.monotonic() > deadline:
                if not found:
                    raise InfrastructureError(f"the {self._log.name} log could not be read in time", RETRY_AFTER_S)
                break
        self._positions = self._log.positions()
        return found

    def _place(self, ends: Mapping[int, int]) -> None:
        for number, end in ends.items():
            if self._seen.get(number, 0) > end:
                raise Replaced(
                    f"the {self._log.name} log was made anew: it ends at {end}, we have read up to {self._seen[number]}"
                )
        self._log.seek(
            {number: max(self._positions.get(number, 0), first) for number, first in self._log.beginnings().items()}
        )
