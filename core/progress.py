"""Progress of long operations: reported by the operation, shown by the terminal (`engine.terminal`)."""

from __future__ import annotations

import logging
import time
from typing import Protocol

# Interval of the messages about one operation.
_LOG_S = 10.0


class Progress(Protocol):
    """Called often, so it must be cheap; called in any thread."""

    def __call__(self, what: str, done: int = 0, total: int = 0) -> object:
        """`what` names the current step, as in "reading the log". `total` is 0 while it is unknown."""


def no_progress(what: str, done: int = 0, total: int = 0) -> None:
    """The progress of a command without display."""


class LoggedProgress:
    """The progress of one long operation of a service, in its log while it advances. The engine's supervisor waits for
    a start as long as it does."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._logged_at = time.monotonic()
        self._logged = 0

    def __call__(self, what: str, done: int = 0, total: int = 0) -> None:
        now = time.monotonic()
        # Not only larger: a scan of several ranges counts each from zero.
        if done != self._logged and now - self._logged_at > _LOG_S:
            self._logger.info("%s: %d records are left", what, total - done)
            self._logged_at, self._logged = now, done
