"""Writing and following the `control` log, and writing the `operations` log. `topic_model.records` encodes the records.

A separate package, since it needs Kafka: the distribution arborcast-client does not contain it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from arborcast.core.errors import ConfigError, InfrastructureError
from arborcast.core.eventlog.damaged import unless_damaged
from arborcast.core.eventlog.follower import LogFollower
from arborcast.core.eventlog.scan import LogScan
from arborcast.core.eventlog.topics import OPERATIONS_LOG, ensure_topics
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.settings import KafkaSettings
from arborcast.topic_model.records import control, operations
from arborcast.topic_model.records.control import ControlRecord
from arborcast.topic_model.records.operations import OperationBegun, OperationEnded

logger = logging.getLogger(__name__)


class ControlLog(LogWriter):
    """Appends control records. Safe to use from several threads; connects when first used."""

    def __init__(self, kafka: KafkaSettings) -> None:
        super().__init__(kafka, "control")

    def ensure_created(self, *, alter: bool = False) -> None:
        """Create the missing Kafka topics of all logs; see `core.eventlog.topics.ensure_topics`.

        Raises InfrastructureError; ConfigError also if a restore into them did not end, or failed.
        """
        ensure_topics(self._kafka, alter=alter)
        with LogScan(self._kafka, OPERATIONS_LOG) as log:
            read = (
                unless_damaged(OPERATIONS_LOG, each.offset, operations.decode, each.value) for each in log.read_all()
            )
            first = next(read, None)  # a restore needs empty logs
            incomplete = (
                isinstance(first, OperationBegun)
                and first.action == operations.RESTORE
                and first.id not in (each.id for each in read if isinstance(each, OperationEnded) and each.succeeded)
            )
        if incomplete:
            raise ConfigError(
                f"the restore into the Kafka topics with the prefix {self._kafka.prefix!r} has not ended, or failed: "
                "wait for its end, or delete these topics, or choose another kafka.prefix, and restore the backup again"
            )

    def append(self, batch: Sequence[ControlRecord]) -> int:
        """Append records in this order; returns the offset of the last one; see `append_encoded`.

        Each record holds a complete state, so it is safe to append it again after an InfrastructureError.
        """
        return self.append_encoded([control.encode(record) for record in batch])


class OperationsLog(LogWriter):
    """Appends operations. Safe to use from several threads; connects when first used, and creates the log: a command
    such as `keys new` may precede the first start of a gateway."""

    def __init__(self, kafka: KafkaSettings) -> None:
        super().__init__(kafka, OPERATIONS_LOG)
        self._ensured = False

    def append(self, record: OperationBegun | OperationEnded) -> None:
        """Append an operation before its execution, or its result; returns when it is in the log. Raises
        InfrastructureError."""
        if not self._ensured:
            ensure_topics(self._kafka, only=(OPERATIONS_LOG,))
            self._ensured = True
        pieces = operations.pieces_of(record) if isinstance(record, OperationBegun) else (record,)
        self.append_encoded([operations.encode(each) for each in pieces])

    @contextmanager
    def recorded(self, operation: OperationBegun) -> Iterator[list[str]]:
        """Record the operation of the block; the block adds descriptions of its result to the yielded list. Raises
        InfrastructureError before the block if the operation cannot be recorded."""
        self.append(operation)
        results: list[str] = []
        try:
            yield results
        except BaseException as error:
            self._end(operations.failed(operation, error))
            raise
        self._end(operations.ended(operation, "; ".join(results) or "done"))

    def _end(self, result: OperationEnded) -> None:
        try:
            self.append(result)
        except InfrastructureError as error:
            logger.warning("the result of an operation is not recorded: %s", error)


class ControlFollower(LogFollower[ControlRecord]):
    """Reads the control log from its beginning, in order, and applies each record once; see `LogFollower`."""

    def __init__(self, kafka: KafkaSettings, apply: Callable[[ControlRecord, int], None], *, wait_ms: int = 10) -> None:
        super().__init__(kafka, "control", control.decode, apply, wait_ms=wait_ms)
