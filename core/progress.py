"""Progress of long operations: reported by the operation, shown by the terminal (`engine.terminal`)."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told often, so it must cost next to nothing; may be told from any thread."""

    def __call__(self, what: str, done: int = 0, total: int = 0) -> object:
        """`what` is under way, as in "reading the log"; `done` of `total`, which is 0 while it is unknown."""


def untold(what: str, done: int = 0, total: int = 0) -> None:
    """The progress of a command without display."""
