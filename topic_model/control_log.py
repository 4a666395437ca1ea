"""Writing and following the `control` log. Records are encoded by `topic_model.records`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from topic_model import records
from topic_model.kafka_topics import ensure_topics
from topic_model.ordered_log import LogFollower, LogWriter
from topic_model.records import ControlRecord
from topic_model.settings import KafkaSettings


class ControlLog(LogWriter):
    """Appends control records. Safe to use from several threads; connects when first used."""

    def __init__(self, kafka: KafkaSettings) -> None:
        super().__init__(kafka, "control")

    def ensure_created(self) -> None:
        """Create the Kafka topics of all logs where they are missing; see `kafka_topics.ensure_topics`."""
        ensure_topics(self._kafka)

    def append(self, batch: Sequence[ControlRecord]) -> int:
        """Append records in this order; returns the offset of the last one; see `append_encoded`.

        Records hold whole states, so appending them again after an InfrastructureError does no harm.
        """
        return self.append_encoded([records.encode(record) for record in batch])


class ControlFollower(LogFollower[ControlRecord]):
    """Reads the control log from its beginning, in order, and applies each record once; see `LogFollower`."""

    def __init__(self, kafka: KafkaSettings, apply: Callable[[ControlRecord, int], None], *, wait_ms: int = 10) -> None:
        super().__init__(kafka, "control", records.decode, apply, wait_ms=wait_ms)
