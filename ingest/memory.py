"""Memory given back to the system after a peak.

The C library keeps what was freed, and after a few large requests at the same time a process would stay as large as it
was then for good.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable

# Large requests often come together: once, when they are through.
_PAUSE_S = 1.0


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

    def give_back_soon(self) -> None:
        """On the event loop. Cheap when it was asked a moment ago."""
        if self._trim is None or self._asked:
            return
        self._asked = True
        asyncio.get_running_loop().call_later(_PAUSE_S, self._give_back, self._trim)

    def _give_back(self, trim: Callable[[], object]) -> None:
        self._asked = False
        asyncio.get_running_loop().run_in_executor(None, trim)
