"""Nonces of digests that were taken, so that whoever overhears one cannot send it again.

With a folder, all workers of a gateway share them, and one that is started again knows what the one before it took.
Then the order of a file decides, as that of a log does elsewhere here: who wants a nonce appends it with a mark of its
own, reads what has come since, and has it when its mark is the first. No locks, no server, two calls of the system.

A digest says when it was made, and is worth nothing some minutes later. So there is a file for each few minutes of
such times, and it goes as a whole when they are over.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from core.errors import ConfigError
from ingest.access.errors import IdentitiesAway, TokenRefused
from ingest.access.username_token import UsernameToken

_SPAN_S = 300
_FINGERPRINT, _MARK = 16, 8
_ENTRY = _FINGERPRINT + _MARK
_AT_ONCE = 2_730 * _ENTRY


class NonceMemory:
    """Nonces that were used, for as long as their time of creation is within the window. Bounded.

    When it is full a new token is refused rather than an old nonce forgotten: forgetting would open the door to a
    replay, and only those who know a password can fill it. The constructor raises ConfigError for a folder that cannot
    be used.
    """

    def __init__(
        self,
        window_s: float,
        maximum: int,
        folder: Path | None = None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._window_s = window_s
        self._steady = steady
        self._maximum = maximum
        self._folder = folder
        self._spans: dict[int, _Span] = {}
        if folder is not None:
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                # What is over is removed by whoever knows of it; here, what nobody does.
                for file in folder.iterdir():
                    if file.name.isdecimal():
                        self._spans[int(file.name)] = _Span(file, steady())
            except OSError as error:
                raise ConfigError(f"{folder} cannot be used to remember nonces: {error.strerror}") from error

    def check_time(self, token: UsernameToken, now_s: float) -> None:
        """Raises TokenRefused for a token from another time."""
        if not abs(now_s - token.created_s) <= self._window_s:
            raise TokenRefused(
                f"wsu:Created is more than {self._window_s:g} s away from the clock here: make a new token, and set "
                "the clock",
                "MessageExpired",
            )

    def use(self, token: UsernameToken, now_s: float) -> None:
        """Take the nonce of a token that proved right, and whose time was checked.

        Raises TokenRefused when it was used before, IdentitiesAway when it cannot be remembered: then nobody comes in.
        """
        number = int(token.created_s // _SPAN_S)
        span = self._spans.get(number)
        try:
            if span is None:
                self._forget(now_s)
                span = self._spans[number] = _Span(self._folder and self._folder / str(number), self._steady())
            if len(self) >= self._maximum:
                self._forget(now_s)
                if len(self) >= self._maximum:
                    raise TokenRefused(
                        f"{self._maximum} nonces were used within {2 * self._window_s:g} s, no more are taken"
                    )
            taken = span.take(_fingerprint(token), self._steady())
        except OSError as error:
            raise IdentitiesAway(f"nonces cannot be remembered now: {error.strerror}", 1.0) from error
        if not taken:
            raise TokenRefused("the wsse:Nonce was used before")

    def close(self) -> None:
        """Let go of the files; they stay."""
        for span in self._spans.values():
            span.close()
        self._spans.clear()

    def _forget(self, now_s: float) -> None:
        """Those that are over by the clock on the wall, and of which nobody has taken any for as long as one can be
        good: that clock may be put ahead, and then back, and what was taken just before would be good once more."""
        steady_s = self._steady()
        for number in [each for each in self._spans if (each + 1) * _SPAN_S + self._window_s < now_s]:
            if steady_s - self._spans[number].used(steady_s) >= 2 * self._window_s:
                self._spans.pop(number).remove()

    def __len__(self) -> int:
        known = 0
        for span in self._spans.values():
            known += len(span.known)
        return known


class _Span:
    """The nonces of tokens that were made within a few minutes."""

    def __init__(self, file: Path | None, now: float) -> None:
        self.known: set[bytes] = set()
        self._used = now
        self._file = file
        self._read = 0
        # Marks are counted on from a random beginning: another worker's is as unlikely to be the same as if each were
        # drawn, and that would be one more call of the system.
        self._mark = int.from_bytes(os.urandom(_MARK))
        self._descriptor = -1 if file is None else os.open(file, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
        if file is not None:
            self._catch_up()

    def used(self, now: float) -> float:
        """When one was taken last, here or, as far as we have noticed, by another worker. Raises OSError."""
        before = self._read
        if self._file is not None:
            self._catch_up()
        if self._read > before:
            self._used = now
        return self._used

    def take(self, fingerprint: bytes, now: float) -> bool:
        """Whether it is the first time. Raises OSError when that cannot be told."""
        if fingerprint in self.known:
            return False
        self._used = now
        if self._file is None:
            self.known.add(fingerprint)
            return True
        self._mark = (self._mark + 1) % (1 << 8 * _MARK)
        entry = fingerprint + self._mark.to_bytes(_MARK)
        # What a power failure takes is the last seconds; a process may be killed at any time.
        os.write(self._descriptor, entry)
        first = self._catch_up(fingerprint)
        if not first:
            # The disk is full, and took a part: from here on no entry of this file is where it should be.
            raise OSError(None, f"{self._file} is damaged")
        return first == entry

    def close(self) -> None:
        if self._file is not None:
            os.close(self._descriptor)

    def remove(self) -> None:
        self.close()
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink()

    def _catch_up(self, wanted: bytes = b"") -> bytes:
        """Read what has come since the last time; the first entry among it with this fingerprint, empty for none.

        What lies behind that entry may be left for the next time.
        """
        first = b""
        while not first and len(data := os.pread(self._descriptor, _AT_ONCE, self._read)) >= _ENTRY:
            end = len(data) - len(data) % _ENTRY
            for start in range(0, end, _ENTRY):
                known = data[start : start + _FINGERPRINT]
                if not first and known == wanted:
                    first = data[start : start + _ENTRY]
                self.known.add(known)
            self._read += end
        return first


def _fingerprint(token: UsernameToken) -> bytes:
    name = token.name.encode()
    # With its length, or what stands at the end of a name could stand at the beginning of a nonce.
    return hashlib.blake2b(b"%d;%s%s" % (len(name), name, token.nonce), digest_size=_FINGERPRINT).digest()
