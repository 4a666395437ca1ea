"""Signals for a loop that waits: a wait ends at once when one arrives, and none is lost between two waits."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from types import FrameType

_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Counts the requests to stop. `wait` is the only place where the loop sleeps."""

    def __init__(self) -> None:
        self.stops = 0
        # A pipe instead of an Event: setting an Event in a handler can deadlock with the wait that it interrupts.
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else _pipe()

    @contextlib.contextmanager
    def installed(self) -> Iterator[Signals]:
        """Takes over the signals (in the main thread), and gives them back afterwards."""
        before = {number: signal.signal(number, self._stop) for number in _STOP}
        # A handler has to be there, or a child's death does not wake us.
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        try:
            yield self
        finally:
            signal.set_wakeup_fd(fd)
            for number, handler in before.items():
                signal.signal(number, handler)

    def wait(self, seconds: float) -> None:
        """Sleeps until a signal arrives, at most so long."""
        ready, _, _ = select.select([self._reader], [], [], max(0.0, seconds))
        if ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._reader, 4096)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stops += 1


def _pipe() -> tuple[int, int]:
    reader, writer = os.pipe()  # not inherited: PEP 446
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    return reader, writer
