"""Repair of a table after a crash of the machine or its disk: back to its last intact version.

A kill leaves a table intact, since commits are atomic. A power cut does not: the newest commits and data files may be
empty or truncated, and the table unreadable. Every version has its writer's position, so the table is continued from
the logs: nothing within their retention is lost. Removed files are kept in `_damaged`. Only tables in local folders are
repaired: object stores keep whole files or none.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from arborcast.core.wall_clock import time_ms
from arborcast.dispatch.tables.spec import TableSpec

logger = logging.getLogger(__name__)

_COMMIT = re.compile(r"\d{20}\.json")
_CHECKPOINT = re.compile(r"\d{20}\.checkpoint(\..+)?\.parquet")
_POINTER = "_last_checkpoint"

# A parquet file begins and ends with this.
_MAGIC = b"PAR1"


def mend(spec: TableSpec, location: str) -> bool:
    """Take a local table back to its last intact version; whether it was damaged. Without one the table is moved away
    and rebuilt. If that would lose old rows that no log has, only the damaged files are removed, with their rows.
    Raises OSError if the folder cannot be changed."""
    folder = _local(location)
    if folder is None or not (folder / "_delta_log").is_dir():
        return False
    return _Mending(spec, folder).run()


def _local(location: str) -> Path | None:
    path = location.removeprefix("file://")
    return None if "://" in path else Path(path)


class _Mending:
    def __init__(self, spec: TableSpec, folder: Path) -> None:
        self._spec = spec
        self._folder = folder
        self._log = folder / "_delta_log"
        self._aside = folder / "_damaged" / str(time_ms())
        self._found: list[str] = []

    def run(self) -> bool:
        checkpoints = self._whole_checkpoints()
        newest = self._newest_whole(max(checkpoints, default=-1))
        if newest is None:
            self._move_away("its log cannot be read")
            return True
        self._take_back(newest)
        while damaged := self._damaged_files():
            self._found += sorted(damaged)
            before = self._version_before(damaged)
            if before is not None:
                self._take_back(before)
            elif self._spec.partition_by:
                self._take_out(damaged)
            else:
                # A table of states: its log has all of it.
                self._move_away(f"{_some(self._found)} cannot be read")
                return True
        if self._found:
            logger.warning(
                "the table at %s was damaged (%s) and was restored to version %d; writing continues from there. "
                "The removed files are in %s",
                self._folder,
                _some(self._found),
                DeltaTable(str(self._folder)).version(),
                self._aside,
            )
        return bool(self._found)

    def _whole_checkpoints(self) -> set[int]:
        """The versions of the checkpoints of the log, after those that are torn have been taken out."""
        versions = set()
        for path in self._files(_CHECKPOINT):
            if _is_parquet(path):
                versions.add(_version(path))
            else:
                self._found.append(path.name)
                self._put_aside(path)
        pointer = self._log / _POINTER
        # Without it readers look for the newest checkpoint themselves.
        if pointer.exists() and _pointed_to(pointer) not in versions:
            pointer.unlink()
        return versions

    def _newest_whole(self, base: int) -> int | None:
        """The newest version that can be read from a checkpoint on, None when there is none."""
        commits = {_version(path): path for path in self._files(_COMMIT)}
        newest = base
        while (path := commits.get(newest + 1)) is not None and _is_commit(path):
            newest += 1
        self._found += [path.name for version, path in sorted(commits.items()) if version > newest]
        return None if newest < 0 else newest

    def _take_back(self, version: int) -> None:
        """Make this the newest version."""
        for path in (*self._files(_COMMIT), *self._files(_CHECKPOINT)):
            if _version(path) > version:
                self._put_aside(path)
        pointer = self._log / _POINTER
        if pointer.exists() and (_pointed_to(pointer) or 0) > version:
            pointer.unlink()

    def _damaged_files(self) -> set[str]:
        """The data files of the newest version that are not there, or not whole."""
        return set(self._damaged_at(None))

    def _damaged_at(self, version: int | None) -> Iterator[str]:
        files = pa.table(DeltaTable(str(self._folder), version=version).get_add_actions(flatten=True))
        for name, size in zip(files["path"].to_pylist(), files["size_bytes"].to_pylist(), strict=True):
            path = self._folder / name
            if not path.is_file() or path.stat().st_size != size or not _is_parquet(path):
                yield name

    def _version_before(self, damaged: Iterable[str]) -> int | None:
        """The newest version that has none of these files, and all that it needs; None when it is not kept any more."""
        added = {name: _version(path) for path in self._files(_COMMIT) for name in _added(path)}
        before = min(added.get(name, 0) for name in damaged) - 1
        if before < 0:
            return None
        try:
            return None if next(self._damaged_at(before), None) else before
        except Exception:
            # Any error of delta-rs for an unreadable version.
            return None

    def _take_out(self, damaged: Iterable[str]) -> None:
        for name in damaged:
            path = self._folder / name
            if path.exists():
                self._put_aside(path)
        DeltaTable(str(self._folder)).repair()
        logger.error(
            "rows of %s are lost with %s: the table cannot be restored to an earlier version. Those of the last "
            "kafka.retention_hours are still in the log: stop the engine and move %s away, and the table "
            "is rebuilt from it",
            self._spec.name,
            _some(damaged),
            self._folder,
        )

    def _move_away(self, why: str) -> None:
        target = self._folder.with_name(f"{self._folder.name}.damaged-{self._aside.name}")
        self._folder.rename(target)
        logger.error("%s: the table is rebuilt from its log. The old files are in %s", why, target)

    def _put_aside(self, path: Path) -> None:
        self._aside.mkdir(parents=True, exist_ok=True)
        path.rename(self._aside / path.name)

    def _files(self, pattern: re.Pattern[str]) -> list[Path]:
        return sorted(path for path in self._log.iterdir() if pattern.fullmatch(path.name))


def _version(path: Path) -> int:
    return int(path.name[:20])


def _pointed_to(pointer: Path) -> int | None:
    """The version that the pointer to the newest checkpoint names, None when it cannot be read."""
    try:
        return int(json.loads(pointer.read_bytes())["version"])
    except (ValueError, KeyError, TypeError):
        return None


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        if file.read(4) != _MAGIC or path.stat().st_size < 12:
            return False
        file.seek(-4, 2)
        return file.read(4) == _MAGIC


def _is_commit(path: Path) -> bool:
    """Whether a commit is complete: an object per line."""
    try:
        return bool(list(_actions(path)))
    except ValueError:
        return False


def _actions(path: Path) -> Iterator[dict[str, dict[str, object]]]:
    """The actions of a commit. Raises ValueError."""
    # Not at whatever else is taken for the end of a line: the extremes of the columns are in it, and so anybody's text.
    for line in filter(None, path.read_bytes().split(b"\n")):
        action = json.loads(line)
        if not isinstance(action, dict):
            raise ValueError(f"{path} holds no actions")
        yield action


def _added(path: Path) -> set[object]:
    """The data files that a commit has added; none when it cannot be read, which matters only before a checkpoint."""
    try:
        return {action["add"]["path"] for action in _actions(path) if "add" in action}
    except ValueError:
        return set()


def _some(names: Iterable[str]) -> str:
    named = list(names)
    return ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
