"""Numbers of batches that grow for as long as there are the logs.

Spark numbers the batches of a checkpoint from 0. We put deliveries that wait in order by their batch, and find what a
batch has written by its number. So when a checkpoint is lost, or a new one is begun, its batches must not be called as
earlier ones were: each checkpoint has a range of numbers of its own, above all that are in the logs. Which one is kept
in the checkpoint itself, as the name of an empty file, which a crash cannot leave half written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RANGE = 10**12
"""How many numbers a checkpoint has: with 25 batches a second they last for a thousand years."""

RANGES = "ranges"
"""Where a checkpoint says which range it has, beside the folders of Spark."""


class Folder(Protocol):
    """A checkpoint."""

    def highest(self, kind: str) -> int | None:
        """The highest of the numbers that are the names of files in one of its folders; None when there is none."""

    def add(self, kind: str, number: int) -> None:
        """An empty file of this name."""


def first_number(checkpoint: Folder, newest: Callable[[], int]) -> int:
    """The number of the batch that Spark calls 0 in this checkpoint.

    `newest` looks up the highest number that any log knows of, below 0 when there is none; it is only asked of a
    checkpoint that has no range yet.
    """
    chosen = checkpoint.highest(RANGES)
    if chosen is None:
        known, reached = newest(), checkpoint.highest("offsets")
        # An Arborcast that did not know of ranges has begun it, and what is in the logs may well be its own.
        ours = reached is not None and known <= reached
        chosen = 0 if ours or known < 0 else known // RANGE + 1
        checkpoint.add(RANGES, chosen)
    return chosen * RANGE


class HadoopFolder:
    """A checkpoint where Spark finds it: on any file system of Hadoop's."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        # Spark offers no public way to Hadoop's file systems.
        self._jvm: Any = spark.sparkContext._jvm  # noqa: SLF001
        configuration: Any = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
        self._location = location.rstrip("/")
        self._files = self._path().getFileSystem(configuration)

    def highest(self, kind: str) -> int | None:
        folder = self._path(kind)
        if not self._files.exists(folder):
            return None
        names = [each.getPath().getName() for each in self._files.listStatus(folder)]
        return max((int(name) for name in names if name.isdigit()), default=None)

    def add(self, kind: str, number: int) -> None:
        self._files.create(self._path(kind, str(number)), True).close()

    def _path(self, *within: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path("/".join((self._location, *within)))
