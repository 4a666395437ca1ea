"""Stopping between batches, or between the rounds of a long one; never while something is pushed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Stopping(Exception):
    """Raised to end a query where nothing is half done: at the beginning of a batch, or between two of its rounds."""


class StopGate:
    """Lets batches in until it is closed, and knows when the last one is out.

    Stopping a query in the middle of a batch breaks pushes off whose outcome is then never written. Closing the gate
    first and waiting until nothing is under way leaves nothing half done.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._closed = False
        self._inside = 0

    @property
    def closed(self) -> bool:
        """Whether no further batch may begin."""
        return self._closed

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Around a batch. Raises Stopping once the gate is closed."""
        with self._condition:
            if self._closed:
                raise Stopping
            self._inside += 1
        try:
            yield
        finally:
            with self._condition:
                self._inside -= 1
                self._condition.notify_all()

    def pass_on(self) -> None:
        """Between two rounds of a batch. Raises Stopping once the gate is closed."""
        if self._closed:
            raise Stopping

    def close(self) -> None:
        """From now on no batch begins."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def wait_closed(self, timeout_s: float | None = None) -> bool:
        """Wait until somebody closes the gate; whether that happened in time."""
        with self._condition:
            return self._condition.wait_for(lambda: self._closed, timeout_s)

    def wait_empty(self, timeout_s: float) -> bool:
        """Wait until no batch is under way; whether that happened in time."""
        with self._condition:
            return self._condition.wait_for(lambda: self._inside == 0, timeout_s)
