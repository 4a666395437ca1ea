"""Repair of a table after a crash of the machine or its disk: back to its last intact version.

A kill leaves a table intact, since commits are atomic. A power cut does not: the newest commits and data files may be
empty or truncated, and the table unreadable. Every version has its writer's position, so the table is continued from
the logs: nothing within their retention is lost. Removed files are moved to `_damaged`, for a week. Only tables in
local folders are repaired: object stores have whole files or none.
"""

from __future__ import annotations

import glob
import json
import logging
import re
import shutil
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

# The first and last bytes of a parquet file.
_MAGIC = b"PAR1"

# Removed files have payloads, which no erasure finds.
_REMOVED_DAYS = 7


def repair_table(spec: TableSpec, location: str) -> bool:
    """Restore a local table to its last intact version; returns whether it was damaged. Without such a version the
    table is moved away and rebuilt. If that would lose old rows that no log has, only the damaged files are removed,
    with their rows. Raises OSError if the folder cannot be changed."""
    folder = _local(location)
    if folder is None or not (folder / "_delta_log").is_dir():
        return False
    return _Repair(spec, folder).run()


def delete_removed(spec: TableSpec, location: str, now_s: float) -> None:
    """Delete files that a repair removed more than a week ago. A table with history that was moved away stays: it may
    have rows that no log has. Raises OSError."""
    folder = _local(location)
    if folder is None:
        return
    removed = list(folder.glob("_damaged/*"))
    if not spec.partition_by:
        removed += folder.parent.glob(f"{glob.escape(folder.name)}.damaged-*")
    before_ms = (now_s - _REMOVED_DAYS * 86_400) * 1000
    for each in removed:
        time_of_repair = each.name.rpartition("-")[2]
        if time_of_repair.isdecimal() and int(time_of_repair) < before_ms:
            shutil.rmtree(each)


def _local(location: str) -> Path | None:
    path = location.removeprefix("file://")
    return None if "://" in path else Path(path)


class _Repair:
    def __init__(self, spec: TableSpec, folder: Path) -> None:
        self._spec = spec
        self._folder = folder
        self._log = folder / "_delta_log"
        self._damaged_folder = folder / "_damaged" / str(time_ms())
        self._removed: list[str] = []

    def run(self) -> bool:
        checkpoints = self._intact_checkpoints()
        newest = self._newest_intact(max(checkpoints, default=-1))
        if newest is None:
            self._move_away("its log cannot be read")
            return True
        while damaged := set(self._damaged_at(None)):
            self._removed += sorted(damaged)
            before = self._version_before(damaged)
            if before is not None:
                self._restore(before)
            elif self._spec.partition_by:
                self._remove_files(damaged)
            else:
                # A table of states: its log has all of it.
                self._move_away(f"{_shortened(self._removed)} cannot be read")
                return True
        if self._removed:
            logger.warning(
                "the table at %s was damaged (%s) and was restored to version %d; writing continues from there. "
                "The removed files are in %s",
                self._folder,
                _shortened(self._removed),
                DeltaTable(str(self._folder)).version(),
                self._damaged_folder,
            )
        return bool(self._removed)

    def _intact_checkpoints(self) -> set[int]:
        """The versions of the intact checkpoints of the log; damaged ones are removed."""
        versions = set()
        for path in self._files(_CHECKPOINT):
            if _is_parquet(path):
                versions.add(_version(path))
            else:
                self._removed.append(path.name)
                self._move_file(path)
        pointer = self._log / _POINTER
        # Without the pointer readers search the newest checkpoint.
        if pointer.exists() and _checkpoint_in(pointer) not in versions:
            pointer.unlink()
        return versions

    def _newest_intact(self, base: int) -> int | None:
        """The newest readable version from a checkpoint on, None without one; damaged commits and those after them are
        removed."""
        commits = {_version(path): path for path in self._files(_COMMIT)}
        newest = base
        while (path := commits.get(newest + 1)) is not None and _is_commit(path):
            newest += 1
        if newest < 0:
            return None
        # Only these: upkeep or an erasure, in another thread, may commit to an intact table meanwhile.
        for _, path in sorted(each for each in commits.items() if each[0] > newest):
            self._removed.append(path.name)
            self._move_file(path)
        return newest

    def _restore(self, version: int) -> None:
        """Make this the newest version."""
        for path in (*self._files(_COMMIT), *self._files(_CHECKPOINT)):
            if _version(path) > version:
                self._move_file(path)
        pointer = self._log / _POINTER
        if pointer.exists() and (_checkpoint_in(pointer) or 0) > version:
            pointer.unlink()

    def _damaged_at(self, version: int | None) -> Iterator[str]:
        """The data files of a version, by default the newest, that are missing or truncated."""
        files = pa.table(DeltaTable(str(self._folder), version=version).get_add_actions(flatten=True))
        for name, size in zip(files["path"].to_pylist(), files["size_bytes"].to_pylist(), strict=True):
            path = self._folder / name
            if not path.is_file() or path.stat().st_size != size or not _is_parquet(path):
                yield name

    def _version_before(self, damaged: Iterable[str]) -> int | None:
        """The newest version without these files, and with all that it needs; None if it is not kept any more."""
        added = {name: _version(path) for path in self._files(_COMMIT) for name in _added(path)}
        before = min(added.get(name, 0) for name in damaged) - 1
        if before < 0:
            return None
        try:
            return None if next(self._damaged_at(before), None) else before
        except Exception:
            # Any error of delta-rs for an unreadable version.
            return None

    def _remove_files(self, damaged: Iterable[str]) -> None:
        for name in damaged:
            path = self._folder / name
            if path.exists():
                self._move_file(path)
        DeltaTable(str(self._folder)).repair()
        logger.error(
            "rows of %s are lost with %s: the table cannot be restored to an earlier version. Those of the last "
            "kafka.retention_hours are still in the log: stop the engine and move %s away, and the table "
            "is rebuilt from it",
            self._spec.name,
            _shortened(damaged),
            self._folder,
        )

    def _move_away(self, why: str) -> None:
        target = self._folder.with_name(f"{self._folder.name}.damaged-{self._damaged_folder.name}")
        self._folder.rename(target)
        logger.error("%s: the table is rebuilt from its log. The old files are in %s", why, target)

    def _move_file(self, path: Path) -> None:
        self._damaged_folder.mkdir(parents=True, exist_ok=True)
        path.rename(self._damaged_folder / path.name)

    def _files(self, pattern: re.Pattern[str]) -> list[Path]:
        return sorted(path for path in self._log.iterdir() if pattern.fullmatch(path.name))


def _version(path: Path) -> int:
    return int(path.name[:20])


def _checkpoint_in(pointer: Path) -> int | None:
    """The version in the pointer to the newest checkpoint, None for an unreadable one."""
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
    # Not `splitlines`: the minimum and maximum of columns contain arbitrary text.
    for line in filter(None, path.read_bytes().split(b"\n")):
        action = json.loads(line)
        if not isinstance(action, dict):
            raise ValueError(f"{path} has no actions")
        yield action


def _added(path: Path) -> set[object]:
    """The data files that a commit has added; none of an unreadable one, which matters only before a checkpoint."""
    try:
        return {action["add"]["path"] for action in _actions(path) if "add" in action}
    except ValueError:
        return set()


def _shortened(names: Iterable[str]) -> str:
    named = list(names)
    return ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
