"""Finding dead letters: what is asked for, and the way through the compacted `dead` log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dispatch.audit.balance import Stretch
from dispatch.audit.reading import LogReading
from dispatch.redelivery import dead_letters, parked
from dispatch.redelivery.dead_letters import DeadLetter
from dispatch.redelivery.parked import Delivery
from topic_model.settings import KafkaSettings
from topic_model.topics import TopicPath


def _every(_path: TopicPath) -> bool:
    return True


@dataclass(frozen=True)
class Wanted:
    """Which dead letters. What is empty or None is not asked for.

    `reason` is one of the error classes (`client-error`, `lifespan`, ...), a state (`dead`, `expired`), an HTTP status,
    or part of the detail; `since_ms` and `until_ms` are about when the delivery was given up.
    """

    subscription: str = ""
    endpoint: str = ""
    notification: str = ""
    topic: Callable[[TopicPath], bool] = _every
    since_ms: int | None = None
    until_ms: int | None = None
    reason: str = ""

    def includes(self, letter: DeadLetter) -> bool:
        """Whether this one is meant."""
        return (
            (not self.subscription or letter.subscription == self.subscription)
            and (not self.endpoint or letter.endpoint == self.endpoint)
            and (not self.notification or letter.notification.id == self.notification)
            and (self.since_ms is None or letter.at_ms >= self.since_ms)
            and (self.until_ms is None or letter.at_ms < self.until_ms)
            and (not self.reason or self._fits(letter))
            and self.topic(letter.notification.topic)
        )

    def _fits(self, letter: DeadLetter) -> bool:
        return self.reason in (letter.error, letter.state, str(letter.status)) or self.reason in letter.detail


class DeadLetters:
    """The letters that are in the log now. Raises InfrastructureError, RecordVersionError."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka

    def matching(self, wanted: Wanted) -> Iterator[tuple[Delivery, DeadLetter]]:
        """Those that are wanted, by subscription's partition and in the order in which they were given up.

        The log is read twice: first where the last record of each delivery stands, then the letters themselves. So
        memory is a hundred bytes for each that is wanted, however large the messages, and none for the others.
        """
        with LogReading(self._kafka, "dead") as log:
            ends = log.ends()
            stretches = {number: Stretch(first, ends[number]) for number, first in log.beginnings().items()}
            standing: dict[bytes, int] = {}
            for record in log.read(stretches):
                if record.value is not None and wanted.includes(dead_letters.decode(record.value)):
                    standing[record.key] = record.offset
                else:
                    standing.pop(record.key, None)
            if not standing:
                return
            for record in log.read(stretches):
                # All records of one delivery are in one partition, so the offset says which one it is.
                if record.value is not None and standing.get(record.key) == record.offset:
                    yield parked.decode_key(record.key)[0], dead_letters.decode(record.value)
