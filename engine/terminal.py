"""Output on a terminal: everything that a command of this project prints passes through this module.

Much of it comes from other people: topics, endpoints, payloads, answers to pushes. None of that may control the
terminal, see `core.printable`. So no other module of these packages prints; a test checks it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import threading
import time
import traceback
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from arborcast.core.printable import as_json, one_line, printable
from arborcast.core.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment


def print_line(line: object) -> None:
    """Write a line to standard output, at once."""
    _write(sys.stdout, f"{printable(str(line))}\n")


def print_error(line: object) -> None:
    """Write a line to standard error, at once. One that was closed, or a full disk, does not end a command in the
    middle of its work."""
    with contextlib.suppress(OSError):
        _write(sys.stderr, f"{printable(str(line))}\n")


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    _write(sys.stdout, as_json(value, indent=2, default=str) + "\n")


def print_json_line(value: Any) -> None:
    """One JSON document on one line, at once; letters of all scripts as they are."""
    _write(sys.stdout, as_json(value, ensure_ascii=False) + "\n")


def print_document(data: bytes) -> None:
    """Write a document to standard output: unchanged into a file or a pipe, printable on a terminal."""
    if sys.stdout.isatty():
        _write(sys.stdout, printable(data.decode(errors="replace")))
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def console(file: TextIO | None = None) -> Console:
    """Rich's console on standard output, or `file`."""
    return _console_class()(file=file)


def error_console() -> Console:
    """Rich's console on standard error."""
    return _console_class()(stderr=True)


_STYLED_ROWS = 1_000
"""Rows of a table that rich draws: it needs a millisecond for each."""


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Rows below their headings, each on a line of its own."""
    cells = [tuple(printable(one_line(cell)) for cell in row) for row in rows]
    if len(cells) > _STYLED_ROWS:
        widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
        for row in (heads, *cells):
            print_line("  ".join(map(str.ljust, row, widths)).rstrip())
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table(*heads, box=None, pad_edge=False)
    for row in cells:
        table.add_row(*map(escape, row))
    console().print(table)


def guard() -> None:
    """Make Python's own output printable, too: stack traces, and log lines of a process without a logging
    configuration. Standard streams that are closed are opened to the null device."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            # Otherwise the next file gets this descriptor, such as the lock that `up --detach` passes on.
            stream = open(os.devnull, "r" if name == "stdin" else "w")  # noqa: SIM115 -- open until the end
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
    sys.excepthook = _show_failure
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_PrintableFormatter())


# Columns of a pipe or a file, which has no width.
_UNLIMITED = 100_000


@functools.cache
def _console_class() -> type[Console]:
    # Rich is loaded only for coloured output: `--help` and `--json` do not need it.
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    class PrintableConsole(Console):
        """Rich's own control codes (colours, cursor movements) are in separate segments, so any control code in a text
        comes from outside."""

        def __init__(self, **named: Any) -> None:
            # Topics and addresses have colons, which would mark names of emoji.
            super().__init__(emoji=False, **named)
            if not self.is_terminal and "COLUMNS" not in os.environ:
                self.width = _UNLIMITED

        def print(self, *objects: Any, **named: Any) -> None:
            """A column of a table is at least as wide as its longest word: rich would cut it, or drop the column."""
            wide = self.options.update(width=_UNLIMITED)
            for table in (each for each in objects if isinstance(each, Table)):
                named["crop"] = False
                for column in table.columns:
                    widths = (Measurement.get(self, wide, cell).minimum for cell in (column.header, *column.cells))
                    column.min_width = max(column.min_width or 0, *widths)
            super().print(*objects, **named)

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            """All output passes through this method, nested objects several times."""
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=self._printable(segment.text))

        def render_str(self, text: str, **named: Any) -> Text:
            """Renders texts before they are measured, so that a table has room for escaped characters."""
            return super().render_str(self._printable(text), **named)

        def _printable(self, text: str) -> str:
            return _encodable(printable(text), self.encoding)

    return PrintableConsole


@contextlib.contextmanager
def note_if_slow(line: str, after_s: float = 1.0) -> Iterator[None]:
    """Print this line if the block takes longer than `after_s`. For requests to other systems: the terminal should name
    the system that causes a wait."""
    timer = threading.Timer(after_s, print_error, [line])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError:
        stream.write(_encodable(text, stream.encoding or "ascii"))
    stream.flush()


def _encodable(text: str, encoding: str) -> str:
    """The text with characters escaped that a terminal or a locale with a limited character set lacks."""
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _show_failure(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    print_error("".join(traceback.format_exception(kind, error, trace)).rstrip("\n"))


class _PrintableFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


# Progress of a command: a bar on a terminal, otherwise a line from time to time. The same for all commands. Work of
# less than two seconds shows nothing.

_QUIET_S = 2.0
"""Seconds without display at the beginning."""

_LINE_EVERY_S = 10.0

_DRAWN_EVERY_S = 0.2


class ProgressShown:
    """A `core.progress.Progress` that is displayed within a `with`. Other output remains possible."""

    def __init__(self, *, quiet_s: float = _QUIET_S, line_every_s: float = _LINE_EVERY_S) -> None:
        self._quiet_s = quiet_s
        self._line_every_s = line_every_s
        self._now: tuple[str, int, int] | None = None
        self._over = threading.Event()

    def __call__(self, what: str, done: int = 0, total: int = 0) -> None:
        self._now = (what, done, total)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread = start_thread("progress", self._run)
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
                print_error(line(*self._now, time.monotonic() - self._began))
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
            transient=True,  # only the result stays on the screen
            auto_refresh=False,
            redirect_stdout=False,  # it may be a file
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
                    # Another stage has another speed.
                    bar.reset(task, description=printable(what), total=total or None, share=share(done, total))
                    shown = what
                bar.update(task, completed=done, total=total or None, share=share(done, total), refresh=True)


def line(what: str, done: int, total: int, elapsed_s: float) -> str:
    """For output without a terminal, or into a file."""
    far = share(done, total)
    return f"{what}: {far} after {elapsed_s:.0f} s" if far else f"{what}: {elapsed_s:.0f} s"


def share(done: int, total: int) -> str:
    """The finished share; empty if unknown."""
    if not total:
        return f"{done:,}" if done else ""
    return f"{done:,} of {total:,} ({100 * min(done, total) // total} %)"
