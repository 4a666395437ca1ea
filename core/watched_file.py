"""A file that people edit while we run: read again when it has changed, and kept as it was when it cannot be read."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from core.errors import ConfigError

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_LOOK_AGAIN_S = 1.0


class WatchedFile(Generic[_T]):
    """`read` makes a value of the file's text and name. The constructor raises ConfigError, later reads only log."""

    def __init__(
        self,
        path: Path,
        read: Callable[[str, str], _T],
        changed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._read = read
        self._changed = changed
        self._clock = clock
        self._next_look = clock() + _LOOK_AGAIN_S
        self._stamp = self._stat()
        self._value = self._load()

    @property
    def value(self) -> _T:
        """What the file says. It is looked at once a second at most."""
        now = self._clock()
        if now >= self._next_look:
            self._next_look = now + _LOOK_AGAIN_S
            try:
                self._look()
            except ConfigError as error:
                logger.error("%s; what it said before stays in force", error)
        return self._value

    def _look(self) -> None:
        stamp = self._stat()
        if stamp != self._stamp:
            # Also when it cannot be read: then it is not tried, and complained of, every second.
            self._stamp = stamp
            self._value = self._load()
            self._changed()
            logger.info("%s was read again", self._path)

    def _stat(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be read: {error.strerror}") from error
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _load(self) -> _T:
        try:
            text = self._path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{self._path} is not UTF-8") from error
        return self._read(text, str(self._path))
