"""A temporary file system that can be filled."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path | None]:
    """A new folder on a disk of this number of MiB; None without the right to mount one (only root has it)."""
    folder.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    command = [mount or "true", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    subprocess.run(command, capture_output=True, check=False)
    if umount is None or not folder.is_mount():
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run([umount, "-l", str(folder)], check=False)


class Filling:
    """A file that takes the free space of a disk."""

    def __init__(self, disk: Path) -> None:
        self._file = disk / "filling"

    def fill(self) -> None:
        """Take all free space, to the last byte."""
        with contextlib.suppress(OSError), self._file.open("ab", buffering=0) as file:
            for piece in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    # A write beyond the free space is a short write; only the next one fails.
                    while file.write(b"\0" * piece):
                        pass

    def keep_full(self, seconds: float) -> None:
        """Take freed space for this time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.fill()
            time.sleep(0.1)

    def remove(self) -> None:
        """Free the space."""
        self._file.unlink(missing_ok=True)
