"""A reserved port for a process that a test starts, ends and starts again."""

from __future__ import annotations

import socket
import weakref


class HeldPort:
    """A port of this machine that other processes may bind only by its number.

    A bound socket that does not listen: connections are refused, and servers with SO_REUSEADDR may
    listen. The system may give a port that was merely free to another test.
    """

    def __init__(self) -> None:
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", 0))
        self.number: int = self._held.getsockname()[1]
        self._close = weakref.finalize(self, self._held.close)

    def for_life_of(self, holder: object) -> int:
        """Hold the port for the lifetime of this object; returns its number."""
        self._close.detach()
        weakref.finalize(holder, self._held.close)
        return self.number
