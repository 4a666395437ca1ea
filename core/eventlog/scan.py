"""Reading stretches of logs, from one offset of each partition to another. Bounded memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import NamedTuple

from core.errors import InfrastructureError
from core.eventlog.client import RETRY_AFTER_S, ConsumerRecord, TopicPartition, make_consumer, translated
from core.eventlog.settings import KafkaSettings

# Records of attempts have 150 kB, and only what was polled is in memory.
_POLL_RECORDS = 200


class LogReading:
    """One log. Used by one thread. Everything raises InfrastructureError while Kafka does not answer."""

    def __init__(self, kafka: KafkaSettings, name: str) -> None:
        self._kafka = kafka
        self._name = name
        self._topic = kafka.topic(name)
        self._timeout_ms = int(kafka.request_timeout_s * 1000)
        self._consumer = make_consumer(kafka, wait_ms=50, max_records=_POLL_RECORDS)
        try:
            with translated(f"the {name} log cannot be read"):
                numbers = self._consumer.partitions_for_topic(self._topic)
            if not numbers:
                raise InfrastructureError(f"Kafka topic {self._topic} does not exist yet", RETRY_AFTER_S)
        except BaseException:
            self.close()
            raise
        self._partitions = [TopicPartition(self._topic, number) for number in sorted(numbers)]

    def __enter__(self) -> LogReading:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the connection."""
        self._consumer.close(autocommit=False, timeout_ms=500)

    def beginnings(self) -> dict[int, int]:
        """The first offset that the log still has, by partition."""
        with translated(f"the beginning of the {self._name} log cannot be found"):
            found = self._consumer.beginning_offsets(self._partitions, timeout_ms=self._timeout_ms)
        return {each.partition: found[each] for each in self._partitions}

    def ends(self) -> dict[int, int]:
        """The offset behind the last record, by partition."""
        with translated(f"the end of the {self._name} log cannot be found"):
            found = self._consumer.end_offsets(self._partitions, timeout_ms=self._timeout_ms)
        return {each.partition: found[each] for each in self._partitions}

    def at(self, ms: int) -> dict[int, int]:
        """The first offset written at that time or later, by partition; its end when there is none."""
        ends = self.ends()
        with translated(f"a time in the {self._name} log cannot be found"):
            found = self._consumer.offsets_for_times(dict.fromkeys(self._partitions, max(0, ms)))
        first = {each.partition: found.get(each) for each in self._partitions}
        return {partition: ends[partition] if at is None else at.offset for partition, at in first.items()}

    def read(self, stretches: Mapping[int, Stretch]) -> Iterator[ConsumerRecord]:
        """The records of these stretches, in order within each partition."""
        left = {
            TopicPartition(self._topic, number): each for number, each in stretches.items() if each.first < each.end
        }
        with translated(f"the {self._name} log cannot be read"):
            self._consumer.assign(sorted(left))
            for partition, stretch in left.items():
                self._consumer.seek(partition, stretch.first)
        patience = time.monotonic() + self._kafka.request_timeout_s
        while left:
            with translated(f"the {self._name} log cannot be read"):
                polled = self._consumer.poll(timeout_ms=200)
            for partition, records in polled.items():
                if partition in left:
                    end = left[partition].end
                    yield from (record for record in records if record.offset < end)
            # Behind the last record of a compacted log the position says more than the records.
            done = [each for each in left if self._consumer.position(each) >= left[each].end]
            for partition in done:
                del left[partition]
            if polled or done:
                if done and left:
                    self._continue(left)
                patience = time.monotonic() + self._kafka.request_timeout_s
            elif time.monotonic() > patience:
                raise InfrastructureError(
                    f"the {self._name} log could not be read to its end: nothing came for "
                    f"{self._kafka.request_timeout_s:g} s",
                    RETRY_AFTER_S,
                )

    def _continue(self, left: Mapping[TopicPartition, Stretch]) -> None:
        """Fetch no more of what was read to its end."""
        positions = {each: self._consumer.position(each) for each in left}
        self._consumer.assign(sorted(left))
        for partition, position in positions.items():
            self._consumer.seek(partition, position)


class Stretch(NamedTuple):
    """What of a partition of the `notifications` log belongs to the interval: the first offset, and the one behind."""

    first: int
    end: int
