"""What the engine was like: moments in memory for the last minutes, and in a ring of two files for the last day.

Files in the data directory, because they outlive every restart, cost nothing while nobody looks, and can be read when
the engine is down, which is when people ask. What became of deliveries is in the tables for as long as those keep it;
this is only about how the engine felt.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec

from jobs.monitoring.moments import Moment

logger = logging.getLogger(__name__)

RECENT_S = 600.0

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Moment)


class History:
    """Written by one thread."""

    def __init__(self, folder: Path, keep_s: float) -> None:
        """Each of the two files holds `keep_s`, so at least this much is there."""
        self._folder = folder
        self._keep_s = keep_s
        self._file_began: float | None = None
        self._troubled = False
        self._recent: deque[Moment] = deque()

    def add(self, moment: Moment) -> None:
        """Keep a moment. A full disk costs the history, and one line in the log, never the engine."""
        self._recent.append(moment)
        while self._recent[0].at < moment.at - RECENT_S:
            self._recent.popleft()
        try:
            self._write(moment)
            self._troubled = False
        except OSError as error:
            if not self._troubled:
                logger.warning("the history of metrics in %s is not kept: %s", self._folder, error.strerror)
            self._troubled = True

    def recent(self) -> list[Moment]:
        """The last minutes."""
        return list(self._recent)

    def kept(self) -> list[Moment]:
        """All that is in the files."""
        return read_history(self._folder)

    def _write(self, moment: Moment) -> None:
        current, older = files_in(self._folder)
        if self._file_began is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            first = next(_read(current, 0.0), None)
            self._file_began = first.at if first else moment.at
            _end_line(current)
        if moment.at - self._file_began > self._keep_s:
            current.replace(older)
            self._file_began = moment.at
        with current.open("ab") as stream:
            stream.write(_encoder.encode(moment) + b"\n")


def files_in(folder: Path) -> tuple[Path, Path]:
    """The file that is written to, and the one before it."""
    return folder / "history.jsonl", folder / "history.1.jsonl"


def read_history(folder: Path, since: float = 0.0) -> list[Moment]:
    """All moments kept there since a time (seconds of the epoch), the oldest first. What cannot be read is left out."""
    current, older = files_in(folder)
    found = [*_read(older, since), *_read(current, since)]
    return sorted(found, key=lambda moment: moment.at)


def encode_moments(moments: list[Moment]) -> bytes:
    """As JSON."""
    return _encoder.encode(moments)


def decode_moments(document: bytes) -> list[Moment]:
    """From JSON. Raises ValueError (msgspec.DecodeError is one) for anything else."""
    return msgspec.json.decode(document, type=list[Moment])


def _read(file: Path, since: float) -> Iterator[Moment]:
    try:
        with file.open("rb") as stream:
            for line in stream:
                try:
                    moment = _decoder.decode(line)
                except msgspec.DecodeError:
                    continue  # half a line: its writer was killed
                if moment.at >= since:
                    yield moment
    except OSError:
        return


def _end_line(file: Path) -> None:
    """After a kill in the middle of a line the next one must not be lost with it."""
    if file.exists() and (content := file.stat().st_size):
        with file.open("rb+") as stream:
            stream.seek(content - 1)
            if stream.read(1) != b"\n":
                stream.write(b"\n")
