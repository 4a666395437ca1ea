"""The pulse of a thread that works through something: it beats whenever it comes round, and a watcher counts the beats.

Whoever has a loop that may take long calls `beat()` in it, also where it waits for Kafka as long as it has to; who, if
anybody, listens to this thread is not its business. A beat costs a tenth of a microsecond.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


def nobody() -> None:
    """Nobody listens."""


class _Thread(threading.local):
    hear: Callable[[], None] = staticmethod(nobody)


_thread = _Thread()


def listen(hear: Callable[[], None]) -> None:
    """From now on `hear` is called at every beat of this thread."""
    _thread.hear = hear


def beat() -> None:
    """This thread has come round."""
    _thread.hear()
