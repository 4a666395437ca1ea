"""Log files that stay bounded, though the processes that write them know nothing of it."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

_KEPT = 2


def rotate(log: Path, limit: int) -> bool:
    """Puts the log aside when it has more than `limit` bytes; True when it did.

    The writer has the file open for appending and goes on in it, so it is copied and emptied, not renamed. A line
    written between the two is lost: better than a process that blocks on a pipe nobody reads.
    """
    if not log.exists() or log.stat().st_size <= limit:
        return False
    try:
        for number in range(_KEPT, 1, -1):
            with contextlib.suppress(FileNotFoundError):
                _numbered(log, number - 1).replace(_numbered(log, number))
        shutil.copyfile(log, _numbered(log, 1))
        os.truncate(log, 0)
    except OSError:
        # A full disk: losing the log is better than losing the engine.
        with contextlib.suppress(OSError):
            os.truncate(log, 0)
    return True


def tail(log: Path, lines: int = 15, most: int = 16_384) -> str:
    """The last lines of the log, from its last `most` bytes; empty when there is no log.

    Without the frames of Java's stack traces: fifteen of them would hide the one line that says what happened.
    """
    try:
        with log.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - most))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
    telling = [line for line in text.strip().splitlines() if not line.startswith("\tat ")]
    return "\n".join(telling[-lines:])


class Follower:
    """Reads what is appended to a log from now on."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._position = log.stat().st_size if log.exists() else 0

    def new_lines(self) -> list[str]:
        """The complete lines since the last call."""
        try:
            with self._log.open("rb") as stream:
                if stream.seek(0, os.SEEK_END) < self._position:
                    self._position = 0  # put aside meanwhile
                stream.seek(self._position)
                text = stream.read()
        except OSError:
            return []
        complete = text.rfind(b"\n") + 1
        self._position += complete
        return text[:complete].decode("utf-8", "replace").split("\n")[:-1]


def _numbered(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")
