"""How the base of the routing view reaches the workers: a file that all of them map, or a broadcast.

On one host a file: opening it takes a millisecond whatever its size, and its pages are in memory once for all workers.
On a cluster the workers see no file of the driver's, so it travels as bytes, once to each.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pyspark import SparkContext
from pyspark.core.broadcast import Broadcast

from topic_model.snapshot import Snapshot


class SharedBase(Protocol):
    """A base as it travels in a task: small. Equal ones are the same base."""

    @property
    def size(self) -> int:
        """Bytes that each host of workers is given."""

    def open(self) -> Snapshot:
        """In a worker: the snapshot. Costs something; keep what it returns."""

    def discard(self) -> None:
        """On the driver: it is not needed any more, no task that was started with it still runs."""


class Bases(Protocol):
    """Where the driver puts bases. May be called from any thread."""

    def share(self, snapshot: Snapshot) -> SharedBase:
        """Make a snapshot available to the workers."""

    def close(self) -> None:
        """Leave nothing behind."""


def bases_for(context: SparkContext, folder: Path) -> Bases:
    """Files in `folder` (which is then ours alone) where the workers run on the driver's host, else broadcasts."""
    return FileBases(folder) if workers_are_here(context) else BroadcastBases(context)


def workers_are_here(context: SparkContext) -> bool:
    """Whether the workers run on the driver's host, and see its files."""
    return (context.master or "").startswith("local")


@dataclass(frozen=True)
class FileBase:
    """A base in a file."""

    file: str
    size: int = 0

    def open(self) -> Snapshot:
        return Snapshot.open(Path(self.file))

    def discard(self) -> None:
        # Whoever has mapped it keeps what it has mapped.
        Path(self.file).unlink(missing_ok=True)


class FileBases:
    """Bases as files in one folder."""

    def __init__(self, folder: Path) -> None:
        """What a predecessor that was killed has left there is removed."""
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def share(self, snapshot: Snapshot) -> FileBase:
        file = (self._folder / f"{snapshot.base}.base").absolute()
        snapshot.write(file)
        return FileBase(str(file), file.stat().st_size)

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


@dataclass(frozen=True)
class BroadcastBase:
    """A base as a Spark broadcast. A worker process has one object per broadcast, however often a task names it."""

    broadcast: Broadcast[Snapshot]
    size: int = 0

    def open(self) -> Snapshot:
        return self.broadcast.value

    def discard(self) -> None:
        self.broadcast.destroy()


class BroadcastBases:
    """Bases as broadcasts."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context

    def share(self, snapshot: Snapshot) -> BroadcastBase:
        return BroadcastBase(self._context.broadcast(snapshot), snapshot.size)

    def close(self) -> None:
        """Spark ends broadcasts with its context."""
