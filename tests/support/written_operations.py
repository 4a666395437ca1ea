"""The log `operations` as a list."""

from __future__ import annotations

from arborcast.core.errors import InfrastructureError
from arborcast.topic_model.control_log import OperationsLog
from arborcast.topic_model.records.operations import OperationBegun, OperationEnded


class WrittenOperations(OperationsLog):
    """The log without Kafka; with `error` set, appends fail."""

    def __init__(self, error: InfrastructureError | None = None) -> None:
        self.records: list[OperationBegun | OperationEnded] = []
        self.error = error

    def append(self, record: OperationBegun | OperationEnded) -> None:
        if self.error is not None:
            raise self.error
        self.records.append(record)

    def close(self) -> None:
        """There is no connection."""

    def made(self) -> list[tuple[str, list[str]]]:
        """The operations: kind and target."""
        operations = [each for each in self.records if isinstance(each, OperationBegun)]
        return [(each.action, [change.subject for change in each.changes]) for each in operations]
