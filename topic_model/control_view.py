"""What the control log says: the one fold over its records. Pure; whoever has a log gives it the records in order."""

from __future__ import annotations

from typing import Protocol

from arborcast.topic_model.projections.suspensions import Suspensions
from arborcast.topic_model.records.control import ControlRecord
from arborcast.topic_model.routing import History, RoutingTable


class Projection(Protocol):
    """State that follows from control records, each kind of it from the records that it knows."""

    def apply(self, record: ControlRecord) -> None:
        """Fold one record; those of other kinds change nothing."""


class ControlView:
    """The routing table, which of its subscriptions are suspended, and further projections, all at the same position.

    One thread at a time applies.
    """

    def __init__(self, *projections: Projection, history: History | None = None) -> None:
        self.table = RoutingTable(history=history)
        self.suspensions = Suspensions()
        self._projections = (self.suspensions, *projections)

    def apply(self, record: ControlRecord, offset: int | None = None) -> None:
        """Fold one record, from this place in the log."""
        self.table.apply(record, offset)
        for each in self._projections:
            each.apply(record)
