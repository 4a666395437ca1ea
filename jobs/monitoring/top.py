"""`arborcast top`: frame after frame on a terminal, in place."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from jobs.monitoring import figures
from jobs.monitoring.top_frame import frame
from jobs.monitoring.watching import Watch

# A screen of its own, without a cursor; afterwards everything is as it was.
_BEGIN, _END = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"

# Two looks that far apart make a rate.
_FIRST_PAUSE_S = 1.0


def once(watch: Watch, where: str, out: TextIO, sleep: Callable[[float], None] = time.sleep) -> bool:
    """Print one frame; whether there was anything to show."""
    seen = watch.look()
    if len(seen.moments) == 1:
        sleep(_FIRST_PAUSE_S)
        seen = watch.look()
    columns, rows = shutil.get_terminal_size((80, 24))
    out.write(_suited("\n".join(frame(seen, where, columns, rows)) + "\n", out))
    return bool(seen.moments)


def forever(watch: Watch, where: str, out: TextIO, interval_s: float) -> None:
    """Frame after frame, until Ctrl-C."""
    with _screen(out):
        while True:
            began = time.monotonic()
            seen = watch.look()
            columns, rows = shutil.get_terminal_size((80, 24))
            draw(frame(seen, where, columns, rows), out)
            time.sleep(max(0.1, interval_s - (time.monotonic() - began)))


def draw(lines: list[str], out: TextIO) -> None:
    """Over the frame that is there, in one write, clearing only what the new one leaves: nothing flickers."""
    text = f"{_REST_OF_LINE}\r\n".join(lines)
    out.write(_HOME + _suited(text, out) + _REST_OF_LINE + _REST_OF_SCREEN)
    out.flush()


def _suited(text: str, out: TextIO) -> str:
    """With what the terminal's encoding has: not every one has the characters that charts are made of."""
    encoding = out.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return figures.plain(text).encode(encoding, "replace").decode(encoding)
    return text


@contextmanager
def _screen(out: TextIO) -> Iterator[None]:
    out.write(_BEGIN)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        out.write(_END)
        out.flush()
