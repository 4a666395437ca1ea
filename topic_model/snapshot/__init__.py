"""Snapshots: a routing table as one buffer, broadcast and read in place, plus overlays of changes.

packing   compact encoding of subscriptions; an immutable map from strings to bytes in one buffer
base      the snapshot: built from a checkpoint, opened in constant time
view      a snapshot with an overlay, queried like the table, or updated by the table's steps
"""

from __future__ import annotations

from arborcast.topic_model.routing.overlay import Overlay
from arborcast.topic_model.snapshot.base import Snapshot
from arborcast.topic_model.snapshot.view import SnapshotView, SteppedView

__all__ = ["Overlay", "Snapshot", "SnapshotView", "SteppedView"]
