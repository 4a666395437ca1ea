"""Progress of long operations: reported by the operation, shown by the terminal (`engine.terminal`)."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called often, so it must be cheap; called in any thread."""

    def __call__(self, what: str, done: int = 0, total: int = 0) -> object:
        """`what` names the current step, as in "reading the log". `total` is 0 while it is unknown."""


def no_progress(what: str, done: int = 0, total: int = 0) -> None:
    """The progress of a command without display."""
