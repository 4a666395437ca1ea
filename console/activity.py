"""The log of changes that visitors of the console have made: a file in the data directory."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import OrderedDict
from pathlib import Path

import msgspec

from arborcast.core.reasons import reason_of

logger = logging.getLogger(__name__)

FILE = "console-activity.jsonl"

# Of the file; one earlier file is kept.
_MOST_BYTES = 1024 * 1024

_MOST_CHARACTERS = 500

# Notes for the next page, of this number of visitors.
_NOTES = 1_000


class Activity(msgspec.Struct, frozen=True):
    """A change: its time, the user (empty on loopback), the result as a sentence, and the fields of the form."""

    at_ms: int
    user: str
    text: str
    about: str = ""


class ActivityLog:
    """Appends to the file, in threads; and has the result of each visitor's last change for the next page."""

    def __init__(self, home: Path) -> None:
        self._notes: OrderedDict[str, str] = OrderedDict()
        self._file = home / FILE
        self._earlier = self._file.with_suffix(".1.jsonl")
        self._lock = threading.Lock()

    def note(self, session: str, text: str) -> None:
        """A note for the next page of a session."""
        self._notes[session] = text
        while len(self._notes) > _NOTES:
            self._notes.popitem(last=False)

    def noted(self, session: str, *, shown: bool = False) -> str:
        """The note of a session, or an empty one; with `shown` it is dropped."""
        return self._notes.pop(session, "") if shown else self._notes.get(session, "")

    def add(self, one: Activity) -> None:
        """Never raises: the change is made already."""
        line = msgspec.json.encode(
            msgspec.structs.replace(one, text=one.text[:_MOST_CHARACTERS], about=one.about[:_MOST_CHARACTERS])
        )
        with self._lock:
            try:
                if self._file.exists() and self._file.stat().st_size > _MOST_BYTES:
                    self._file.replace(self._earlier)
                with self._file.open("ab") as stream:
                    stream.write(line + b"\n")
            except OSError as error:
                logger.warning("%s by %s is not in %s: %s", one.text, one.user, self._file, reason_of(error))

    def newest(self, most: int) -> list[Activity]:
        """The newest changes first. Raises OSError."""
        lines: list[bytes] = []
        for file in (self._earlier, self._file):
            with contextlib.suppress(FileNotFoundError):
                lines += file.read_bytes().splitlines()
        found = []
        for line in reversed(lines[-most:]):
            # The last line may be incomplete after a crash.
            with contextlib.suppress(msgspec.DecodeError):
                found.append(msgspec.json.decode(line, type=Activity))
        return found
