"""Saying that the disk is filling up, while there is still room to say it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

_MIB = 2**20


def free_mb(folder: Path) -> int:
    """How much room there is, in MiB. Raises OSError."""
    return shutil.disk_usage(folder).free // _MIB


def shortage(folder: Path, free: int, wanted: int) -> str:
    """What is wrong with so few MiB, and what to do; empty when they are enough."""
    if free >= wanted:
        return ""
    return (
        f"only {free} MiB are free on the disk of {folder} (stack.min_free_disk_mb asks for {wanted}): make room "
        "there. On a full disk Kafka ends and publishers are told to come back later; nothing that was accepted is "
        "lost, and with room all goes on by itself"
    )


class DiskWatch:
    """Looks at a disk, and reports when it becomes too full and when it has room again, each once."""

    def __init__(
        self, folder: Path, wanted_mb: int, report: Callable[[str], None], free: Callable[[Path], int] = free_mb
    ) -> None:
        self._folder = folder
        self._wanted_mb = wanted_mb
        self._report = report
        self._free = free
        self._short = False

    def look(self) -> None:
        """To be called now and then."""
        try:
            free = self._free(self._folder)
        except OSError:
            return
        told = shortage(self._folder, free, self._wanted_mb)
        if told and not self._short:
            self._report(told)
        # A disk that is filled and emptied around the mark is one story, not a hundred.
        elif self._short and free >= 1.1 * self._wanted_mb:
            self._report(f"{free} MiB are free again on the disk of {self._folder}")
        else:
            return
        self._short = bool(told)
