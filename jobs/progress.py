"""How far a command has come, for who waits for it: a bar on a terminal, else a line now and then.

One way for all commands. What is done within two seconds shows nothing. All of it goes to standard error: results are
on standard output.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Self

from core.printable import printable
from jobs.terminal import complain, error_console

_QUIET_S = 2.0
"""Nobody asks what is going on before."""

_LINE_EVERY_S = 10.0

_DRAWN_EVERY_S = 0.2


class ProgressShown:
    """A `core.progress.Progress` that shows what it is told, within a `with`. Printing goes on beside it."""

    def __init__(self, *, quiet_s: float = _QUIET_S, line_every_s: float = _LINE_EVERY_S) -> None:
        self._quiet_s = quiet_s
        self._line_every_s = line_every_s
        self._now: tuple[str, int, int] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __call__(self, what: str, done: int = 0, total: int = 0) -> None:
        self._now = (what, done, total)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        if self._over.wait(self._quiet_s):
            return
        if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            self._draw()
        else:
            self._write_lines()

    def _write_lines(self) -> None:
        while True:
            if self._now is not None:
                complain(line(*self._now, time.monotonic() - self._began))
            if self._over.wait(self._line_every_s):
                return

    def _draw(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[share]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            console=error_console(),
            transient=True,  # what stays on the screen is the result
            auto_refresh=False,
            redirect_stdout=False,  # which may be a file
        )
        while self._now is None:
            if self._over.wait(_DRAWN_EVERY_S):
                return
        shown, done, total = self._now
        task = bar.add_task(printable(shown), completed=done, total=total or None, share=share(done, total))
        with bar:
            while not self._over.wait(_DRAWN_EVERY_S):
                what, done, total = self._now
                if what != shown:
                    # Another stage is as fast as it is.
                    bar.reset(task, description=printable(what), total=total or None, share=share(done, total))
                    shown = what
                bar.update(task, completed=done, total=total or None, share=share(done, total), refresh=True)


def line(what: str, done: int, total: int, elapsed_s: float) -> str:
    """For who has no terminal, or reads it later in a file."""
    far = share(done, total)
    return f"{what}: {far} after {elapsed_s:.0f} s" if far else f"{what}: {elapsed_s:.0f} s"


def share(done: int, total: int) -> str:
    """How much of how much; empty where there is nothing to say."""
    if not total:
        return f"{done:,}" if done else ""
    return f"{done:,} of {total:,} ({100 * min(done, total) // total} %)"
