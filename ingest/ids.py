"""Identifiers: sortable ones for notifications, unguessable ones for resources."""

from __future__ import annotations

import random
import secrets
import time

_SEQUENCE_BITS = 12
_RANDOM_BITS = 62
_VERSION = 0x7 << (_SEQUENCE_BITS + 2 + _RANDOM_BITS)
_VARIANT = 0x2 << _RANDOM_BITS


class NotificationIds:
    """UUIDs of version 7 as 32 hexadecimal digits: as text they sort in the order in which they were made here.

    The twelve bits after the time count within a millisecond; a busier millisecond borrows from the next.
    """

    def __init__(self) -> None:
        self._last = 0
        # Not a secret, only to be different in every process.
        self._random = random.Random(secrets.randbits(128))  # noqa: S311

    def next(self) -> str:
        """A new identifier."""
        now = (time.time_ns() // 1_000_000) << _SEQUENCE_BITS
        self._last = max(self._last + 1, now)
        milliseconds, sequence = self._last >> _SEQUENCE_BITS, self._last & ((1 << _SEQUENCE_BITS) - 1)
        value = milliseconds << 80 | _VERSION | sequence << 64 | _VARIANT | self._random.getrandbits(_RANDOM_BITS)
        return f"{value:032x}"


def resource_id() -> str:
    """A name for a subscription: whoever knows it may end it, so it cannot be guessed."""
    return secrets.token_urlsafe(18)
