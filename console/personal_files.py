"""Files of the visitors of the console, one for each, in a folder of the data directory."""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Callable
from pathlib import Path

from arborcast.core.files import write_atomically


class PersonalFiles:
    """The files of at most `most` persons: the oldest are deleted first, and those untouched for `lasts_s`."""

    def __init__(
        self, folder: Path, most: int, lasts_s: float = math.inf, clock: Callable[[], float] = time.time
    ) -> None:
        self._folder = folder
        self._most = most
        self._lasts_s = lasts_s
        self._clock = clock

    def read(self, person: str) -> bytes:
        """The file of a person. Raises OSError."""
        return self._file(person).read_bytes()

    def write(self, person: str, data: bytes) -> None:
        """Replace the file of a person; without data it is deleted. Raises OSError."""
        file = self._file(person)
        if not data:
            file.unlink(missing_ok=True)
            return
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(file, data, mode=0o600)
        self._delete_old()

    def _file(self, person: str) -> Path:
        # Names and sessions are not for file names: the one may be any text, the other is a secret.
        return self._folder / f"{hashlib.sha256(person.encode()).hexdigest()}.json"

    def _delete_old(self) -> None:
        files = sorted(self._folder.glob("*.json"), key=lambda each: each.stat().st_mtime, reverse=True)
        for number, file in enumerate(files):
            if number >= self._most or self._clock() - file.stat().st_mtime > self._lasts_s:
                with contextlib.suppress(FileNotFoundError):
                    file.unlink()
