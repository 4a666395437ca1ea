"""Reading stretches of logs, from one offset of each partition to another, and single records. Bounded memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from arborcast.core import liveness
from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import RETRY_AFTER_S, ConsumerRecord
from arborcast.core.eventlog.consumer import Discontinued, LogConsumer
from arborcast.core.progress import Progress, untold
from arborcast.core.settings import KafkaSettings

# Records of attempts have 150 kB, and only polled ones are in memory.
_POLL_RECORDS = 200

_POLL_S = 0.2


class Stretch(NamedTuple):
    """A range of a partition: the first offset, and the one after the last."""

    first: int
    end: int


class LogScan(LogConsumer):
    """Reads the current contents of a log; see LogConsumer. Records must arrive within `request_timeout_s`; or, with
    `within_s`, all of them within this time, however long the broker is away meanwhile. `progress` is called with
    offsets: a compacted log has fewer records."""

    def __init__(
        self, kafka: KafkaSettings, name: str, within_s: float | None = None, progress: Progress = untold
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
        """All that the log has now, in order within each partition."""
        return self.read_from(self.beginnings())

    def read_from(self, firsts: Mapping[int, int], ends: Mapping[int, int] | None = None) -> Iterator[ConsumerRecord]:
        """The records from these offsets on up to `ends`, or to the end that the log has now; in order within each
        partition."""
        ends = self.ends() if ends is None else ends
        return self.read({number: Stretch(first, ends[number]) for number, first in firsts.items()})

    def read(self, stretches: Mapping[int, Stretch]) -> Iterator[ConsumerRecord]:
        """The records of these stretches, in order within each partition."""
        left = {number: each.end for number, each in stretches.items() if each.first < each.end}
        self.seek({number: stretches[number].first for number in left})
        total = sum(end - stretches[number].first for number, end in left.items())
        heard = time.monotonic()
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
                heard = now
            if left:
                self._check_time(heard, now)

    def _check_time(self, heard: float, now: float) -> None:
        if self._within_s is None and now > heard + self.kafka.request_timeout_s:
            why = f"no record arrived for {self.kafka.request_timeout_s:g} s"
        elif self._within_s is not None and now > self._began + self._within_s:
            why = f"it took longer than {self._within_s:g} s"
        else:
            return
        raise InfrastructureError(f"the {self.name} log could not be read to its end: {why}", RETRY_AFTER_S)

    def _timeout_ms(self, timeout_s: float | None) -> int:
        return super()._timeout_ms(self._within_s if timeout_s is None else timeout_s)


class LogReader:
    """Looks up single records, by their offsets, in a log of one partition. One thread at a time."""

    def __init__(self, kafka: KafkaSettings, name: str) -> None:
        self._log = LogConsumer(kafka, name, max_records=2_000)

    def read(self, offsets: Iterable[int]) -> dict[int, bytes]:
        """The values at these offsets, without those that the log no longer has (or that have none).

        Raises InfrastructureError when they cannot be had within `request_timeout_s`.
        """
        wanted = sorted(set(offsets))
        found: dict[int, bytes] = {}
        deadline = time.monotonic() + self._log.kafka.request_timeout_s
        try:
            while wanted:
                if time.monotonic() > deadline:
                    raise InfrastructureError(f"the {self._log.name} log could not be read in time", RETRY_AFTER_S)
                wanted = self._fetch(wanted, found)
        except InfrastructureError:
            self.close()
            raise
        return found

    def close(self) -> None:
        self._log.close()

    def _fetch(self, wanted: list[int], found: dict[int, bytes]) -> list[int]:
        """Read on from the first of those wanted; returns those that are still to be looked for."""
        self._log.seek({0: wanted[0]})
        try:
            polled = self._log.poll(0.5).get(0, ())
        except Discontinued:
            # The log's beginning is requested only now: usually it has every referenced record.
            beginning = self._log.beginnings(5.0)[0]
            if beginning <= wanted[0]:
                raise
            return [offset for offset in wanted if offset >= beginning]
        if not polled:
            return wanted
        looked_for = set(wanted)
        for record in polled:
            if record.offset in looked_for and record.value is not None:
                found[record.offset] = record.value
        return [offset for offset in wanted if offset > polled[-1].offset]
