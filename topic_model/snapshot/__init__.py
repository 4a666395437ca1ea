"""Snapshots: a routing table as one buffer of bytes, to be broadcast and read where it lies, plus overlays of changes.

packing   subscriptions as few bytes; an immutable map from strings to bytes in one buffer
base      the snapshot: made from a checkpoint, opened in constant time
view      with an overlay: asked like the table; or going on with the steps of the table, and whom notifications belong
          to by it
"""

from __future__ import annotations

from arborcast.topic_model.routing.overlay import Overlay
from arborcast.topic_model.snapshot.base import Snapshot
from arborcast.topic_model.snapshot.view import SnapshotView, SteppedView

__all__ = ["Overlay", "Snapshot", "SnapshotView", "SteppedView"]
