"""A port for something that a test starts, ends and starts again: nobody else gets it before, or in between."""

from __future__ import annotations

import socket
import weakref


class HeldPort:
    """A port of this machine that others may bind by its number only.

    A socket is bound to it that does not listen: whoever connects is refused, and who allows it (SO_REUSEADDR, as
    servers do) may listen. A port that was merely free a moment ago is sometimes given to a test beside.
    """

    def __init__(self) -> None:
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", 0))
        self.number: int = self._held.getsockname()[1]
        self._close = weakref.finalize(self, self._held.close)

    def for_life_of(self, holder: object) -> int:
        """Let it go with this object; its number."""
        self._close.detach()
        weakref.finalize(holder, self._held.close)
        return self.number
