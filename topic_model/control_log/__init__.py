"""Writing and following the `control` log. Records are encoded by `topic_model.records.control`.

A package of its own, since it needs Kafka: the distribution arborcast-client leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from arborcast.core.eventlog.follower import LogFollower
from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.settings import KafkaSettings
from arborcast.topic_model.records import control
from arborcast.topic_model.records.control import ControlRecord


class ControlLog(LogWriter):
    """Appends control records. Safe to use from several threads; connects when first used."""

    def __init__(self, kafka: KafkaSettings) -> None:
        super().__init__(kafka, "control")

    def ensure_created(self) -> None:
        """Create the Kafka topics of all logs where they are missing; see `core.eventlog.topics`."""
        ensure_topics(self._kafka)

    def append(self, batch: Sequence[ControlRecord]) -> int:
        """Append records in this order; returns the offset of the last one; see `append_encoded`.

        Records hold whole states, so appending them again after an InfrastructureError does no harm.
        """
        return self.append_encoded([control.encode(record) for record in batch])


class ControlFollower(LogFollower[ControlRecord]):
    """Reads the control log from its beginning, in order, and applies each record once; see `LogFollower`."""

    def __init__(self, kafka: KafkaSettings, apply: Callable[[ControlRecord, int], None], *, wait_ms: int = 10) -> None:
        super().__init__(kafka, "control", control.decode, apply, wait_ms=wait_ms)
