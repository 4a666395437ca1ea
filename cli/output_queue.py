"""Received messages before their output."""

from __future__ import annotations

import queue
import threading

from arborcast.client.listener import Busy
from arborcast.client.received import ReceivedMessage

WAITING_BYTES = 32 * 1024 * 1024
"""Limit of the messages before their output, with the last message above it."""

# Of one message in addition to its payload, and of one with a file, of which few may be open.
_OVERHEAD = 16 * 1024
_OF_FILE = 1024 * 1024


class OutputQueue:
    """Received messages before their output, which may be blocked, in bounded memory."""

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[ReceivedMessage | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._size = 0

    def put(self, message: ReceivedMessage) -> None:
        """Raises Busy."""
        with self._lock:
            if self._size >= WAITING_BYTES:
                raise Busy
            self._size += _size(message)
        self._messages.put(message)

    def end(self) -> None:
        """Note that no further message will arrive."""
        self._messages.put(None)

    def get(self) -> ReceivedMessage | None:
        """Wait for the next message; None at the end."""
        message = self._messages.get()
        if message is not None:
            with self._lock:
                self._size -= _size(message)
        return message


def _size(message: ReceivedMessage) -> int:
    return _OF_FILE if message.file is not None else _OVERHEAD + len(message.payload)
