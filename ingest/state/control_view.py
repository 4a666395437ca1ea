"""The gateway's view of the control log: the routing table, and whatever else is computed from control records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from core.eventlog.settings import KafkaSettings
from ingest.state.log_view import POLL_S, LogView
from topic_model.records.control import ControlRecord
from topic_model.records.control_log import ControlFollower
from topic_model.routing import RoutingTable


class Fold(Protocol):
    """State that is computed from control records, each kind from those that it knows."""

    def apply(self, record: ControlRecord) -> None: ...


class ControlView(LogView[ControlRecord]):
    """A routing table, and further `folds`, that follow the control log; see LogView.

    `observe` is given every record, in order, in the thread that reads them.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        on_failure: Callable[[Exception], None],
        observe: Callable[[ControlRecord], None] | None = None,
        folds: Sequence[Fold] = (),
    ) -> None:
        self.table = RoutingTable()
        self._kafka = kafka
        self._folds = tuple(folds)
        self._observer = observe
        super().__init__("control", on_failure)

    def _make_follower(self) -> ControlFollower:
        return ControlFollower(self._kafka, self._take, wait_ms=int(POLL_S * 1000))

    def _observe(self, record: ControlRecord) -> None:
        if self._observer is not None:
            self._observer(record)

    def _fold(self, record: ControlRecord, offset: int) -> None:
        self.table.apply(record, offset)
        for fold in self._folds:
            fold.apply(record)
