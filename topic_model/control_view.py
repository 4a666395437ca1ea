"""The fold over the control log. Pure; its user applies the records in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from arborcast.topic_model.projections.cameras import Cameras
from arborcast.topic_model.projections.erasures import Erasures
from arborcast.topic_model.projections.suspensions import Suspensions
from arborcast.topic_model.records.control import ControlRecord
from arborcast.topic_model.routing import History, RoutingTable


class Projection(Protocol):
    """State derived from control records."""

    def apply(self, record: ControlRecord) -> None:
        """Apply one record; records of other kinds are ignored."""


class ControlView:
    """The routing table, the suspensions, the erasures, the cameras, and further projections, at the same position.
    Records are applied by one thread at a time."""

    def __init__(self, *projections: Projection, history: History | None = None) -> None:
        self.table = RoutingTable(history=history)
        self.suspensions = Suspensions()
        self.erasures = Erasures()
        self.cameras = Cameras()
        self._projections: Sequence[Projection] = (self.suspensions, self.erasures, self.cameras, *projections)

    def apply(self, record: ControlRecord, offset: int | None = None) -> None:
        """Apply the record at this position."""
        self.table.apply(record, offset)
        for each in self._projections:
            each.apply(record)
