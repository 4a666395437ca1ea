"""Reading the `parked` log on from where a file has come to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from core.eventlog.client import ConsumerRecord
from core.eventlog.consumer import LogConsumer, Replaced
from core.eventlog.settings import KafkaSettings
from dispatch.logs.parked import roomy

# A poll with nothing to read ends by then, whatever was asked for.
_WAIT_MS = 250


class ParkedReading:
    """Used by one thread. Connects when first used; everything raises InfrastructureError, Discontinued where the log
    does not go on where we were: what was folded is of another one, or too old."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._log = LogConsumer(roomy(kafka), "parked", wait_ms=_WAIT_MS, max_records=2_000)
        self.positions: dict[int, int] = {}

    def begin(self, known: Mapping[int, int]) -> None:
        """Go on at these positions; raises Discontinued when they are not of this log."""
        beginnings = self._log.beginnings()
        if any(known.get(number, 0) > end for number, end in self._log.ends().items()):
            raise Replaced("the log of parked deliveries was created anew, what was known is of the old one")
        self.positions = {number: max(known.get(number, 0), first) for number, first in beginnings.items()}
        self._log.seek(self.positions)

    def ends(self) -> dict[int, int]:
        """Where each partition ends now."""
        return {number: end for number, end in self._log.ends().items() if number in self.positions}

    def reached(self, ends: Mapping[int, int]) -> bool:
        """Whether everything before these offsets was read."""
        return all(self.positions[partition] >= end for partition, end in ends.items())

    def poll(self, timeout_s: float) -> Iterator[tuple[int, Sequence[ConsumerRecord]]]:
        """What comes within this time, by partition; each counts as read when the next is asked for."""
        for number, records in self._log.poll(timeout_s).items():
            if records:
                yield number, records
                self.positions[number] = records[-1].offset + 1

    def close(self) -> None:
        """Free the connection."""
        self._log.close()
