"""Log files of bounded size, without the cooperation of their writers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from arborcast.core.printable import as_json
from arborcast.core.telemetry import log_format
from arborcast.core.threads import start_thread

# Further lines of an event follow within this time; a later line is a new event.
_TOGETHER_S = 0.2

# In bytes; a longer line is stored in parts.
_LONGEST_LINE = 1_048_576

# The longest stack trace that is stored.
_MOST_LINES = 300

# Spark's lines have our form for people, Kafka's that of slf4j's simple logger.
_HEAD = re.compile(
    r"(?P<at>\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-][\d:]+)) +(?P<level>[A-Za-z]+) +(?:[a-z]+: )?"
    r"(?P<logger>[\w.$-]+)(?: - |: )(?P<message>.*)"
)

_MORE = re.compile(r"\s|Caused by: |Suppressed: |[\w.$]+(?:Exception|Error)\b")

_LEVELS = {"trace": "debug", "warn": "warning", "fatal": "critical"}


class JsonLines:
    """Makes lines of JSON from lines of any kind. An entry that may continue (a stack trace) is pending until `finish`,
    or until another one begins."""

    def __init__(self, part: str) -> None:
        self._part = part
        self._open: dict[str, str] = {}
        self._trace: list[str] = []

    @property
    def open(self) -> bool:
        """Whether an entry is pending."""
        return bool(self._open)

    def take(self, line: str, now: float) -> Iterator[str]:
        """The next line, without its end; `now` in seconds of the epoch. Returns the completed entries."""
        if self._open and _MORE.match(line):
            if len(self._trace) < _MOST_LINES:
                self._trace.append(line)
            return
        yield from self.finish()
        document = _object(line)
        if document:
            yield document
        elif line.strip():
            self._open = self._begun(line, now)

    def finish(self) -> Iterator[str]:
        """The pending entry, if any."""
        if self._open:
            document = {**self._open, **({"trace": "\n".join(self._trace)} if self._trace else {})}
            self._open, self._trace = {}, []
            yield as_json(document, ensure_ascii=False)

    def _begun(self, line: str, now: float) -> dict[str, str]:
        head = _HEAD.fullmatch(line)
        if head is None:
            level = "error" if line.startswith("Traceback ") else "info"
            document: dict[str, str] = json.loads(log_format.write("json", now, level, self._part, line))
            return document
        level = head["level"].lower()
        return {
            "at": head["at"],
            "level": _LEVELS.get(level, level),
            "part": self._part,
            "message": head["message"],
            "logger": head["logger"],
        }


def follow(source: int, log: Path, part: str) -> threading.Thread:
    """Copy the output of this descriptor into a log file, until its end; then it is closed."""
    return start_thread(f"log-{part}", _copy, source, log, JsonLines(part))


def _copy(source: int, log: Path, lines: JsonLines) -> None:
    remainder = b""
    try:
        while True:
            ready, _, _ = select.select([source], [], [], _TOGETHER_S if lines.open else None)
            if not ready:
                _write(log, lines.finish())
                continue
            data = os.read(source, 65_536)
            *complete, remainder = (remainder + data).split(b"\n")
            if not data or len(remainder) > _LONGEST_LINE:
                complete, remainder = [*complete, remainder], b""
            for line in complete:
                _write(log, lines.take(line.decode("utf-8", "replace"), time.time()))
            if not data:
                return
    finally:
        _write(log, lines.finish())
        os.close(source)


def _write(log: Path, lines: Iterator[str]) -> None:
    # The pipe must be read even if the file cannot be written, or the part would block.
    with contextlib.suppress(OSError):
        for line in lines:
            log.parent.mkdir(exist_ok=True)  # deleted by a person, to make space
            with log.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


def _object(line: str) -> str:
    """A line that is a JSON object, encoded again: its writer may have put terminal control codes into it. Empty for
    other lines, and for one that is nested too deeply."""
    if not line.startswith("{"):
        return ""
    try:
        return as_json(json.loads(line), ensure_ascii=False)
    except (ValueError, RecursionError):
        return ""


_KEPT = 2


def rotate(log: Path, limit: int) -> bool:
    """Rotate the log if it has more than `limit` bytes; returns whether it did.

    The writer has the file open for appending and continues in it, so it is copied and emptied, not renamed. A line
    written between the two is lost, which is better than a process that blocks on a pipe without a reader.
    """
    try:
        if log.stat().st_size <= limit:
            return False
    except OSError:  # not written yet, or deleted by a person
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


def keep(log: Path, writer: int) -> None:
    """Continue a log file that a person has deleted. Its writer continues in the deleted file, open as `writer`: lines
    are moved from there into a new file. The deleted lines stay deleted, and the disk gets their space."""
    with contextlib.suppress(OSError):
        if os.fstat(writer).st_nlink:
            return
        if log.exists():
            with log.open("ab") as file:
                copied = 0  # the position in the file is that of the writer
                while part := os.pread(writer, 65_536, copied):
                    copied += file.write(part)
        else:
            log.parent.mkdir(exist_ok=True)
            log.touch()
    # On a full disk, too: as in `rotate`.
    with contextlib.suppress(OSError):
        os.truncate(writer, 0)


# Of a log in a message: lines, and bytes in which they are searched for.
_SHOWN_LINES, _SEARCHED_BYTES = 15, 16_384


def tail(log: Path) -> str:
    """The last lines of the log; empty without a log.

    Without the frames of Java's stack traces: fifteen of them would hide the line with the error.
    """
    try:
        with log.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - _SEARCHED_BYTES))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
    lines_kept = [line for line in text.strip().splitlines() if not line.startswith("\tat ")]
    return "\n".join(lines_kept[-_SHOWN_LINES:])


class LogTail:
    """Reads lines that are appended to a log from now on."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._position = log.stat().st_size if log.exists() else 0

    def new_lines(self) -> list[str]:
        """The complete lines since the last call."""
        try:
            with self._log.open("rb") as stream:
                if stream.seek(0, os.SEEK_END) < self._position:
                    self._position = 0  # rotated since the last call
                stream.seek(self._position)
                text = stream.read()
        except OSError:
            return []
        complete = text.rfind(b"\n") + 1
        self._position += complete
        return text[:complete].decode("utf-8", "replace").split("\n")[:-1]


def _numbered(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")
