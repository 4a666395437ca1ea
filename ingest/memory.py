"""Memory given back to the system after a peak.

The C library keeps what was freed, and after a few large requests at the same time a process would stay as large as it
was then for good.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable

# Large requests often come together: once, when they are through, and not again at once.
_PAUSE_S = 1.0
_BETWEEN_S = 10.0


def trimming() -> Callable[[], object] | None:
    """What gives free memory back; None where the C library is not glibc. It takes milliseconds, without the GIL."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):
        return None
    return lambda: trim(0)


class FreedMemory:
    """Gives it back a moment after it was asked to, in a thread."""

    def __init__(self) -> None:
        self._trim = trimming()
        self._asked = False
        self._next = 0.0

    def give_back_soon(self) -> None:
        """On the event loop. Cheap when it was asked a moment ago."""
        if self._trim is None or self._asked:
            return
        self._asked = True
        loop = asyncio.get_running_loop()
        loop.call_later(max(_PAUSE_S, self._next - loop.time()), self._give_back, self._trim)

    def _give_back(self, trim: Callable[[], object]) -> None:
        self._asked = False
        loop = asyncio.get_running_loop()
        self._next = loop.time() + _BETWEEN_S
        loop.run_in_executor(None, trim)
