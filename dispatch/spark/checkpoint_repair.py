"""A query's checkpoint after a crash of the machine: what was half written is taken away.

Spark keeps, per batch, a file with what the batch is to read (`offsets/N`) and, when it is done, one that says so
(`commits/N`). Both are renamed into place, but a machine that loses power, or a disk that fills up, can leave the last
ones empty or torn, and Spark then refuses to start for ever. Without its plan the last batch is planned anew. Without
its commit it is repeated, and what it has written already is left out. Older files are never touched.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from arborcast.core.errors import InfrastructureError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Spark numbers the batches of a checkpoint from 0. We put deliveries that wait in order by their batch, and find what a
# batch has written by its number. So when a checkpoint is lost, or a new one is begun, its batches must not be called
# as earlier ones were: each checkpoint has a range of numbers of its own, above all that are in the logs. The range is
# kept in the checkpoint itself as the name of an empty file, which a crash cannot leave half written.
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
        known = newest()
        chosen = 0 if known < 0 else known // RANGE + 1
        checkpoint.add(RANGES, chosen)
    return chosen * RANGE


class HadoopFolder:
    """A checkpoint where Spark finds it: on any file system of Hadoop's."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        context: Any = spark.sparkContext
        self._jvm = context._jvm  # noqa: SLF001  # Spark offers no public way to Hadoop's file systems
        configuration = context._jsc.hadoopConfiguration()  # noqa: SLF001  # the same
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

    def remove(self) -> None:
        """Take the whole folder away, if it is there."""
        self._files.delete(self._path(), True)

    def _path(self, *within: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path("/".join((self._location, *within)))


logger = logging.getLogger(__name__)


def mended(checkpoint: str) -> str:
    """The same checkpoint, without what is torn; raises as `mend`."""
    mend(checkpoint)
    return checkpoint


def mend(checkpoint: str) -> list[Path]:
    """Take away what is torn at the end of a local checkpoint; the files that were taken, or made anew. What is not
    local is not looked at: object stores write whole files or none.

    Raises InfrastructureError when the folder cannot be read or changed.
    """
    folder = _folder(checkpoint)
    if folder is None:
        return []
    torn = [path for path in _last_files(folder) if not _is_whole(path)]
    # A batch cannot be done that was never planned.
    torn += [
        commit
        for path in torn
        if path.parent.name == "offsets" and (commit := folder / "commits" / path.name).exists() and commit not in torn
    ]
    query_id = folder / "metadata"
    for path in torn:
        try:
            if path == query_id:
                # Spark refuses a checkpoint with plans and without an id.
                path.write_text(json.dumps({"id": str(uuid.uuid4())}), encoding="utf-8")
            else:
                path.unlink()
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        except OSError as error:
            raise InfrastructureError(f"{path} has to be mended after a crash, and cannot be: {error}") from error
        if path == query_id:
            logger.warning("%s has a new id: this is another query than before", path)
        else:
            logger.warning("%s was written only in part, and was removed; its batch is planned or run again", path)
    return torn


def is_cut_off(checkpoint: str) -> bool:
    """Whether the last batch that was planned is not done, and is repeated first of all; False of what is not local."""
    folder = _folder(checkpoint)
    planned = _newest(folder, "offsets") if folder else None
    done = _newest(folder, "commits") if folder else None
    return planned is not None and (done is None or done < planned)


def settled(checkpoint: str, topic: str) -> dict[int, int] | None:
    """The end, by partition, of the last batch that is done: none when no batch is; None when the checkpoint cannot be
    looked at from here."""
    if "://" in checkpoint.removeprefix("file://"):
        return None
    folder = _folder(checkpoint)
    done = _newest(folder, "commits") if folder else None
    if folder is None or done is None:
        return {}
    if not _is_whole(folder / "commits" / str(done)):
        done -= 1  # its batch is repeated
    return _ends(folder, done, topic) if done >= 0 else {}


def _ends(folder: Path, batch: int, topic: str) -> dict[int, int] | None:
    """Where a batch ends, by partition; None when that cannot be read."""
    try:
        plan = (folder / "offsets" / str(batch)).read_text(encoding="utf-8")
        # A version, the batch's metadata, and one line for each source.
        source = json.loads(plan.splitlines()[2])[topic]
        return {int(partition): int(end) for partition, end in source.items()}
    except (OSError, ValueError, LookupError, AttributeError, TypeError):
        return None


def _newest(folder: Path, kind: str) -> int | None:
    return max((int(path.name) for path in (folder / kind).glob("*") if path.name.isdigit()), default=None)


def _folder(checkpoint: str) -> Path | None:
    """The folder of a local checkpoint that is there."""
    path = checkpoint.removeprefix("file://")
    folder = Path(path)
    return folder if "://" not in path and folder.is_dir() else None


def _last_files(folder: Path) -> list[Path]:
    """The query's id, the last plan and the last commit."""
    found = [path for path in (folder / "metadata",) if path.is_file()]
    for kind in ("offsets", "commits"):
        newest = _newest(folder, kind)
        if newest is not None:
            found.append(folder / kind / str(newest))
    return found


def _is_whole(path: Path) -> bool:
    """Whether a file is as Spark writes it: JSON on every line, after the version."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        if path.name != "metadata":
            if lines[:1] != ["v1"]:
                return False
            lines = lines[1:]
        least = 2 if path.parent.name == "offsets" else 1
        return len(lines) >= least and all(isinstance(json.loads(line), (dict, str)) or line == "-" for line in lines)
    except (ValueError, OSError):
        return False
