"""When the workers get a new base: built in a thread of its own, so that no batch waits for it.

The workers' view is a base and an overlay of what has changed since. The overlay travels again after every change, so
it must not grow without end: when it has grown, a second checkpoint of the table is taken, and the next base is made of
it while batches go on with the old base and its overlay. When it is ready the view moves over to it.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from dispatch.matching.bases import Bases, SharedBase
from topic_model.routing import Checkpoint, Overlay, RoutingTable
from topic_model.snapshot import Snapshot

logger = logging.getLogger(__name__)

# An overlay costs a few ms per 10,000 changes whenever it changes again; a base of a million subscriptions costs
# seconds of CPU, and so may wait for more changes than one of a hundred.
MIN_OVERLAY = 2_000
_BASE_SHARE = 50


@dataclass
class _Build:
    """A base in the making. The thread writes `shared` or `failed`, and is done then."""

    checkpoint: Checkpoint
    thread: threading.Thread | None = None
    shared: SharedBase | None = None
    failed: bool = False


class Rebasing:
    """The base and the overlay of a table. Used by one thread at a time, the one that changes the table."""

    def __init__(self, table: RoutingTable, bases: Bases, min_overlay: int = MIN_OVERLAY) -> None:
        self._table = table
        self._bases = bases
        self._min_overlay = min_overlay
        self._limit = min_overlay
        self._checkpoint: Checkpoint | None = None
        self._base: SharedBase | None = None
        self._build: _Build | None = None

    def current(self) -> tuple[SharedBase, Overlay]:
        """What the workers need to answer as the table does now. Waits for a base only the first time.

        Bases that earlier answers named may be discarded: no task that was started with one may still run.
        """
        if self._base is None or self._checkpoint is None:
            self._checkpoint = self._table.checkpoint()
            self._base = self._bases.share(Snapshot.build(self._checkpoint))
            self._limit = self._limit_for()
        elif self._build is not None:
            self._adopt(self._build)
        overlay = self._checkpoint.overlay()
        if self._build is None and overlay.size > self._limit:
            self._begin()
        return self._base, overlay

    def close(self) -> None:
        """Wait for what is being built, and discard everything."""
        if self._build is not None and self._build.thread is not None:
            self._build.thread.join()
        self._bases.close()

    def _begin(self) -> None:
        build = _Build(self._table.checkpoint())
        # A daemon: a stop must not wait for it.
        build.thread = threading.Thread(target=self._make, args=(build,), name="routing-base", daemon=True)
        self._build = build
        build.thread.start()

    def _make(self, build: _Build) -> None:
        try:
            build.shared = self._bases.share(Snapshot.build(build.checkpoint))
        except Exception:
            # The old base goes on to serve. A full disk, say, may be mended by the time of the next attempt.
            logger.exception("no new routing base could be made; the old one and its changes stay in use")
            build.failed = True

    def _adopt(self, build: _Build) -> None:
        """Move over to a new base once it is there."""
        if build.failed:
            build.checkpoint.close()
            self._build = None
            self._limit *= 2  # not again with every batch
        elif build.shared is not None and self._checkpoint is not None and self._base is not None:
            self._checkpoint.close()
            self._base.discard()
            self._checkpoint, self._base, self._build = build.checkpoint, build.shared, None
            self._limit = self._limit_for()

    def _limit_for(self) -> int:
        return max(self._min_overlay, self._table.statistics().subscriptions // _BASE_SHARE)
