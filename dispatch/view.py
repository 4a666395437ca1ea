"""The routing table on the driver, and how the workers come by it.

The driver folds the control log. Workers get a base (everything at some point of the log) and an overlay (what changed
since). Both are Spark broadcasts, which a worker process fetches and opens once. With nothing changed a batch costs the
look at the log's end; after a change a new overlay; the base is sent again only when the overlay has grown.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pyspark import SparkContext
from pyspark.core.broadcast import Broadcast

from topic_model.control_log import ControlFollower
from topic_model.records import ControlRecord
from topic_model.routing import Checkpoint, Overlay, RoutingTable
from topic_model.settings import KafkaSettings
from topic_model.snapshot import Snapshot, SnapshotView

logger = logging.getLogger(__name__)

# An overlay costs a few ms per 10,000 changes whenever it changes again; a base of a million subscriptions seconds.
MAX_OVERLAY = 2_000


@dataclass(frozen=True)
class SharedView:
    """The view of one batch, as it travels to the workers: two broadcasts."""

    base: Broadcast[Snapshot]
    overlay: Broadcast[Overlay] | None

    def open(self) -> SnapshotView:
        """In a worker: the view; opened once for as long as it is the same."""
        global _opened
        # A worker process has one Broadcast object per broadcast, however often a task names it.
        if _opened is None or _opened.base is not self.base or _opened.overlay is not self.overlay:
            overlay = self.overlay.value if self.overlay is not None else None
            _opened = _Opened(self.base, self.overlay, SnapshotView(self.base.value, overlay))
        return _opened.view


@dataclass(frozen=True)
class _Opened:
    base: Broadcast[Snapshot]
    overlay: Broadcast[Overlay] | None
    view: SnapshotView


_opened: _Opened | None = None


class RoutingView:
    """The driver's side. Used by one thread at a time."""

    def __init__(self, kafka: KafkaSettings, context: SparkContext, max_overlay: int = MAX_OVERLAY) -> None:
        self._context = context
        self._max_overlay = max_overlay
        self._follower = ControlFollower(kafka, self._apply)
        self._table = RoutingTable()
        self._checkpoint: Checkpoint
        self._shared_overlay: Overlay | None = None
        self._shared: SharedView | None = None
        self._shared_position = -1

    def refresh(self, timeout_s: float) -> SharedView:
        """Read the control log to its end and return the view of that moment.

        What the previous view held may be given up: no task that was started with it may still run.
        Raises InfrastructureError when the log cannot be read to its end in time, RecordVersionError when a newer
        Arborcast has written to it.
        """
        position = self._follower.read_to_end(timeout_s)
        if self._shared is None or position != self._shared_position:
            self._shared = self._share(self._shared)
            self._shared_position = position
        return self._shared

    def close(self) -> None:
        """Free the connection."""
        self._follower.close()

    def _apply(self, record: ControlRecord, offset: int) -> None:
        self._table.apply(record)

    def _share(self, previous: SharedView | None) -> SharedView:
        if previous is None:
            return self._share_base()
        overlay = self._checkpoint.overlay()
        if overlay is self._shared_overlay:
            return previous  # records came, but none that changes who gets what
        if overlay.size > self._max_overlay:
            self._checkpoint.close()
            shared = self._share_base()
            previous.base.destroy()
        else:
            shared = SharedView(previous.base, self._context.broadcast(overlay))
            self._shared_overlay = overlay
        if previous.overlay is not None:
            previous.overlay.destroy()
        return shared

    def _share_base(self) -> SharedView:
        self._checkpoint = self._table.checkpoint()
        self._shared_overlay = self._checkpoint.overlay()
        return SharedView(self._context.broadcast(Snapshot.build(self._checkpoint)), None)
