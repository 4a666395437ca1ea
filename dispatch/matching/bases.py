"""Distribution of the base of the routing view to the workers: a file that all of them map, or a broadcast.

On one host a file: opening it takes a millisecond whatever its size, and its pages are in memory once for all workers.
On a cluster, where the workers cannot read the driver's files, its bytes are sent once to each.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from pyspark import SparkContext
from pyspark.core.broadcast import Broadcast

from arborcast.core.threads import start_thread
from arborcast.topic_model.routing import Checkpoint, Overlay, RoutingTable
from arborcast.topic_model.snapshot import Snapshot


def bases_for(context: SparkContext, folder: Path) -> Bases:
    """Files in `folder`, which is then used only by this job, if the workers run on the driver's host, else
    broadcasts."""
    return FileBases(folder) if workers_are_local(context) else BroadcastBases(context)


def workers_are_local(context: SparkContext) -> bool:
    """Whether the workers run on the driver's host, with access to its files."""
    return (context.master or "").startswith("local")


@dataclass(frozen=True)
class FileBase:
    """A base in a file, as part of a task; `size` is the number of bytes that each host of workers gets."""

    file: str
    size: int = 0

    @property
    def name(self) -> bytes:
        """The name in updates of a running task."""
        return os.fsencode(self.file)

    def open(self) -> Snapshot:
        """The snapshot, in a worker, which keeps it: this is costly."""
        return Snapshot.open(Path(self.file))

    def discard(self) -> None:
        """Remove the base: no task that was started with it runs any more. Workers keep their mapped copy."""
        Path(self.file).unlink(missing_ok=True)


class FileBases:
    def __init__(self, folder: Path) -> None:
        """Removes files of a killed predecessor."""
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def share(self, snapshot: Snapshot) -> FileBase:
        """Make a snapshot available to the workers. In any thread."""
        file = (self._folder / f"{snapshot.base}.base").absolute()
        snapshot.write(file)
        return FileBase(str(file), file.stat().st_size)

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


@dataclass(frozen=True)
class BroadcastBase:
    """A base as a Spark broadcast; see FileBase. A worker process has one object per broadcast, whatever the number of
    tasks with it."""

    broadcast: Broadcast[Snapshot]
    size: int = 0

    @property
    def name(self) -> bytes:
        return b"broadcast"  # a running task has the one of its start, and gets no other

    def open(self) -> Snapshot:
        return self.broadcast.value

    def discard(self) -> None:
        self.broadcast.destroy()


class BroadcastBases:
    def __init__(self, context: SparkContext) -> None:
        self._context = context

    def share(self, snapshot: Snapshot) -> BroadcastBase:
        return BroadcastBase(self._context.broadcast(snapshot), snapshot.size)

    def close(self) -> None:
        """Spark ends broadcasts with its context."""


SharedBase = FileBase | BroadcastBase
"""Equal ones are the same base."""

Bases = FileBases | BroadcastBases

logger = logging.getLogger(__name__)

# An overlay costs a few ms per 10,000 changes whenever it changes again; a base of a million subscriptions costs
# seconds of CPU, and so may wait for more changes than one of a hundred.
MIN_OVERLAY = 2_000

_BASE_SHARE = 50


@dataclass
class _Build:
    """A base being built. The thread ends after it has set `shared` or `failed`."""

    checkpoint: Checkpoint
    thread: threading.Thread | None = None
    shared: SharedBase | None = None
    failed: bool = False


class SnapshotRebuilder:
    """The base and the overlay of a table. Used by one thread at a time, the one that changes the table."""

    def __init__(self, table: RoutingTable, bases: Bases, min_overlay: int = MIN_OVERLAY) -> None:
        self._table = table
        self._bases = bases
        self._min_overlay = min_overlay
        self._limit = min_overlay
        self._current: tuple[SharedBase, Checkpoint] | None = None
        self._build: _Build | None = None
        self.made_at = 0.0
        """When the newest base was made, in seconds since the epoch."""

    def current(self) -> tuple[SharedBase, Overlay]:
        """A view with the current results of the table. Waits for a base only the first time. Earlier bases may be
        discarded: no task that was started with one may still run."""
        base, checkpoint = self.newest()
        overlay = checkpoint.overlay()
        if self._build is None and overlay.size > self._limit:
            self._begin()
        return base, overlay

    def newest(self) -> tuple[SharedBase, Checkpoint]:
        """The newest base and its checkpoint, for views that follow the changes in steps. Earlier ones may be
        discarded, and their checkpoints are closed."""
        if self._current is None:
            checkpoint = self._table.checkpoint()
            self._current = self._bases.share(Snapshot.build(checkpoint)), checkpoint
            self._changed()
        elif self._build is not None:
            self._current = self._adopted(self._build, *self._current)
        return self._current

    def renewed(self) -> bool:
        """Whether `newest` is a base with few later changes, or a better one cannot be built. Otherwise a new one is
        being built in a thread."""
        if self._build is None and self._current is not None and self._current[1].overlay().size > self._limit:
            self._begin()
        return self._build is None or self._build.failed or self._build.shared is not None

    def close(self) -> None:
        """Wait for the base being built, and discard everything."""
        if self._build is not None and self._build.thread is not None:
            self._build.thread.join()
        self._bases.close()

    def _begin(self) -> None:
        self._build = build = _Build(self._table.checkpoint())
        try:
            build.thread = start_thread("routing-base", self._make, build)
        except RuntimeError as error:  # the system has no thread left
            logger.error("no new routing base can be built now; the old one and its changes stay in use: %s", error)
            build.failed = True

    def _make(self, build: _Build) -> None:
        try:
            build.shared = self._bases.share(Snapshot.build(build.checkpoint))
        except Exception:
            # The old base stays in use. A full disk, for example, may be repaired by the next attempt.
            logger.exception("no new routing base could be built; the old one and its changes stay in use")
            build.failed = True

    def _adopted(self, build: _Build, base: SharedBase, checkpoint: Checkpoint) -> tuple[SharedBase, Checkpoint]:
        """The new base if it is ready, in place of the current one."""
        if build.failed:
            build.checkpoint.close()
            self._build = None
            self._limit *= 2  # not again with every batch
        elif build.shared is not None:
            checkpoint.close()
            base.discard()
            base, checkpoint, self._build = build.shared, build.checkpoint, None
            self._changed()
        return base, checkpoint

    def _changed(self) -> None:
        self.made_at = time.time()
        self._limit = max(self._min_overlay, self._table.statistics().subscriptions // _BASE_SHARE)
