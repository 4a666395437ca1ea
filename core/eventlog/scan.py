"""Reading ranges of offsets of each partition, and single records. Bounded memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from arborcast.core import liveness
from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import RETRY_AFTER_S, ConsumerRecord
from arborcast.core.eventlog.consumer import Discontinued, LogConsumer
from arborcast.core.progress import Progress, no_progress
from arborcast.core.settings import KafkaSettings

# Only polled records are in memory; a record of attempts has 150 kB.
_POLL_RECORDS = 200

_POLL_S = 0.2


class OffsetRange(NamedTuple):
    """A range of offsets of a partition; `end` is exclusive."""

    first: int
    end: int


class LogScan(LogConsumer):
    """Reads the current contents of a log; see LogConsumer. The next records must arrive within `request_timeout_s`;
    with `within_s`, only the whole scan is limited to this time, outages of the broker included. `progress` is called
    with offsets: a compacted log has fewer records."""

    def __init__(
        self, kafka: KafkaSettings, name: str, within_s: float | None = None, progress: Progress = no_progress
    ) -> None:
        super().__init__(kafka, name, wait_ms=50, max_records=_POLL_RECORDS)
        self._progress = progress
        self._within_s = within_s
        self._began = time.monotonic()

    def __enter__(self) -> LogScan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read_all(self) -> Iterator[ConsumerRecord]:
        """The current records of the log, in order within each partition."""
        return self.read_from(self.beginnings())

    def read_from(self, firsts: Mapping[int, int], ends: Mapping[int, int] | None = None) -> Iterator[ConsumerRecord]:
        """The records from these offsets to `ends`, by default to the current end of the log; in order within each
        partition."""
        ends = self.ends() if ends is None else ends
        return self.read({number: OffsetRange(first, ends[number]) for number, first in firsts.items()})

    def first_behind(self, positions: Mapping[int, int]) -> Iterator[ConsumerRecord]:
        """The first record at or behind each of these positions, without the partitions that end there; of a log that
        is not compacted."""
        begins, ends = self.beginnings(), self.ends()
        firsts = {number: max(position, begins.get(number, 0)) for number, position in positions.items()}
        return self.read({each: OffsetRange(at, min(at + 1, ends.get(each, 0))) for each, at in firsts.items()})

    def read(self, ranges: Mapping[int, OffsetRange]) -> Iterator[ConsumerRecord]:
        """The records of these ranges, in order within each partition."""
        left = {number: each.end for number, each in ranges.items() if each.first < each.end}
        self.seek({number: ranges[number].first for number in left})
        total = sum(end - ranges[number].first for number, end in left.items())
        last_arrival = time.monotonic()
        while left:
            liveness.beat()
            polled = self.poll(_POLL_S)
            for number, records in polled.items():
                end = left.get(number, 0)
                yield from (record for record in records if record.offset < end)
            positions = self.positions()
            done = [number for number, end in left.items() if positions[number] >= end]
            for number in done:
                del left[number]
            behind = sum(max(0, end - positions[number]) for number, end in left.items())
            self._progress(f"reading the {self.name} log", total - behind, total)
            now = time.monotonic()
            if done and left:
                # Stop fetching partitions that were read to their end.
                self.seek({number: positions[number] for number in left})
            if polled or done:
                last_arrival = now
            if left:
                self._check_time(last_arrival, now)

    def _check_time(self, last_arrival: float, now: float) -> None:
        if self._within_s is None and now > last_arrival + self.kafka.request_timeout_s:
            why = f"no record arrived for {self.kafka.request_timeout_s:g} s"
        elif self._within_s is not None and now > self._began + self._within_s:
            why = f"it took longer than {self._within_s:g} s"
        else:
            return
        raise InfrastructureError(f"the {self.name} log could not be read to its end: {why}", RETRY_AFTER_S)

    def _timeout_ms(self, timeout_s: float | None) -> int:
        return super()._timeout_ms(self._within_s if timeout_s is None else timeout_s)


class LogReader(LogConsumer):
    """Reads single records by their offsets from a log of one partition. One thread at a time."""

    def __init__(self, kafka: KafkaSettings, name: str) -> None:
        super().__init__(kafka, name, max_records=2_000)

    def read(self, offsets: Iterable[int]) -> dict[int, bytes]:
        """The values at these offsets, except deleted records and records without a value.

        Raises InfrastructureError if they cannot be read within `request_timeout_s`.
        """
        missing = sorted(set(offsets))
        found: dict[int, bytes] = {}
        deadline = time.monotonic() + self.kafka.request_timeout_s
        try:
            while missing:
                if time.monotonic() > deadline:
                    raise InfrastructureError(f"the {self.name} log could not be read in time", RETRY_AFTER_S)
                missing = self._fetch(missing, found)
        except InfrastructureError:
            self.close()
            raise
        return found

    def _fetch(self, missing: list[int], found: dict[int, bytes]) -> list[int]:
        """Read from the first missing offset; returns the offsets that are still missing."""
        self.seek({0: missing[0]})
        try:
            polled = self.poll(0.5).get(0, ())
        except Discontinued:
            # Requested only on failure: usually the log has every referenced record.
            beginning = self.beginnings(5.0)[0]
            if beginning <= missing[0]:
                raise
            return [offset for offset in missing if offset >= beginning]
        if not polled:
            return missing
        requested = set(missing)
        for record in polled:
            if record.offset in requested and record.value is not None:
                found[record.offset] = record.value
        return [offset for offset in missing if offset > polled[-1].offset]
