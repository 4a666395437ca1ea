"""Joining messages from their parts, from an Arborcast broker or an old one.

Parts may arrive in any order and repeatedly. Parts of large messages are stored on disk. The result is the content in
the older form. A message that stays incomplete for too long is given up and logged.
"""

from __future__ import annotations

import io
import itertools
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import IO

from arborcast.client.received import ReceivedMessage, ReceivedPart
from arborcast.core.log_limit import LogLimit
from arborcast.topic_model.projections.open_messages import OpenMessage, OpenMessages
from arborcast.topic_model.records.fragments import Reason, StoredPart
from arborcast.topic_model.topics import TopicPath

logger = logging.getLogger(__name__)
logger.addFilter(LogLimit())  # any client can send parts

_COPY_BYTES = 1024 * 1024

# Incomplete messages in memory, in multiples of the limit of one.
_MOST_IN_MEMORY = 64


@dataclass
class _Spool:
    """The parts of one message in a file, with the position and size of each by the number of its record."""

    file: tempfile.SpooledTemporaryFile[bytes]
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    size: int = 0
    on_disk: bool = False

    def add(self, record: int, content: bytes, *, to_disk: bool) -> None:
        if to_disk:
            self.file.rollover()
            self.on_disk = True
        self.file.seek(self.size)
        self.file.write(content)
        self.file.flush()  # so that a full disk is found here
        self.spans[record] = self.size, len(content)
        self.size += len(content)

    def write(self, message: OpenMessage, to: IO[bytes]) -> None:
        """Write all parts, in order."""
        for _, record in sorted(message.offsets()):
            start, left = self.spans[record]
            self.file.seek(start)
            while piece := self.file.read(min(left, _COPY_BYTES)):
                to.write(piece)
                left -= len(piece)


class Assembler:
    """Joins parts; several threads may share it. A Listener has its own by default.

    A message of up to `memory_bytes` has its content in `payload`. A larger one has it in `file`, a temporary file
    opened for reading, which is deleted when it is closed; its `payload` is empty. A message is given up without a
    further part for `timeout_s`, above `max_bytes`, and, as the oldest one, above `max_open` incomplete messages or
    `max_open_bytes`. All incomplete messages together have 64 times `memory_bytes` of memory, the others are on disk.
    """

    def __init__(
        self,
        *,
        memory_bytes: int = 1024 * 1024,
        max_bytes: int = 1024 * 1024 * 1024,
        max_open: int = 1_000,
        max_open_bytes: int = 4 * 1024 * 1024 * 1024,
        timeout_s: float = 300.0,
        folder: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`folder` is for temporary files, by default the system's."""
        self._memory_bytes = memory_bytes
        self._max_bytes = max_bytes
        self._max_open = max_open
        self._max_open_bytes = max_open_bytes
        self._timeout_s = timeout_s
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._messages = OpenMessages()
        self._spools: dict[int, _Spool] = {}  # by the record of their first part
        self._numbers = itertools.count()

    @property
    def open(self) -> int:
        """The number of incomplete messages."""
        return len(self._messages.open)

    @property
    def given_up(self) -> int:
        """The number of messages given up."""
        return self._messages.given_up

    @contextmanager
    def joined(self, received: ReceivedMessage) -> Iterator[ReceivedMessage | None]:
        """The message itself if it is not a part; the joined message if it is the last missing part; else None.

        An exception in the block means that the message was not handled: it is joined again when its last part is
        repeated.
        """
        if received.part is None:
            yield received
            return
        with self._lock:
            message = self._take(received.part)
            joined = None if message is None else self._join(message, received)
        try:
            yield joined
        except BaseException:
            if joined is not None and joined.file is not None:
                joined.file.close()
            raise
        if message is not None:
            with self._lock:
                self._end(message)

    def close(self) -> None:
        """Give up all incomplete messages."""
        with self._lock:
            for spool in self._spools.values():
                spool.file.close()
            self._spools.clear()
            self._messages = OpenMessages()

    def _take(self, received: ReceivedPart) -> OpenMessage | None:
        """The message that this part completes; None if parts are missing."""
        now = self._clock()
        self._expire(now)
        part = _stored(received, int(now * 1000))
        known = self._messages.again(part)
        if known is not None:
            return known if known.at in self._messages.complete else None
        if why := self._messages.contradiction(part):
            # A restarted broker may reuse its Identifications.
            logger.warning(
                "the incomplete message %r is given up, because its part %d contradicts it: %s",
                part.identification,
                part.number,
                why,
            )
            self._give_up(self._messages.open[part.owner, part.identification], "content")
        record = next(self._numbers)
        self._messages.apply(part, record, now)
        message = self._messages.complete.get(record) or self._messages.open[part.owner, part.identification]
        spool = self._spools.get(message.first)
        if spool is None:
            file = tempfile.SpooledTemporaryFile(dir=self._folder)  # noqa: SIM115  # closed with its message
            spool = self._spools[message.first] = _Spool(file)
        try:
            spool.add(record, part.content, to_disk=self._is_full(spool, len(part.content)))
        except OSError:
            self._give_up(message, "lost")  # its other parts may be damaged, too
            raise
        if message.bytes > self._max_bytes:
            self._give_up(message, "size")
            return None
        return message if message.complete else None

    def _is_full(self, spool: _Spool, more: int) -> bool:
        """Whether the memory of this message, or of all messages, is exhausted with this number of further bytes."""
        in_memory = sum(each.size for each in self._spools.values() if not each.on_disk)
        return spool.size + more > self._memory_bytes or in_memory + more > _MOST_IN_MEMORY * self._memory_bytes

    def _expire(self, now: float) -> None:
        """Give up expired messages, including complete ones that were not handled."""
        for message in [*self._messages.open.values(), *self._messages.complete.values()]:
            if now - message.seen >= self._timeout_s:
                self._give_up(message, "time")
        while len(self._messages.open) > self._max_open or self._messages.bytes > self._max_open_bytes:
            # Messages whose handling failed are the last: only one part of each is repeated.
            messages = self._messages.open or self._messages.complete
            self._give_up(min(messages.values(), key=lambda each: each.seen), "time")

    def _give_up(self, message: OpenMessage, reason: Reason) -> None:
        record = message.given_up(reason, int(self._clock() * 1000))
        logger.warning(
            "the incomplete message %r is given up: it has the parts %s, missing are %s",
            message.key[1],
            record.had,
            record.missing,
        )
        self._messages.apply(record, next(self._numbers), 0.0)
        self._spools.pop(message.first).file.close()

    def _join(self, message: OpenMessage, received: ReceivedMessage) -> ReceivedMessage:
        spool = self._spools[message.first]
        if spool.size > self._memory_bytes:
            file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115  # the receiver closes it
            spool.write(message, file)
            file.seek(0)
            return replace(received, payload=b"", file=file, part=None)
        small = io.BytesIO()
        spool.write(message, small)
        return replace(received, payload=small.getvalue(), part=None)

    def _end(self, message: OpenMessage) -> None:
        if message.at in self._messages.complete:
            self._messages.apply(message.assembled(), next(self._numbers), 0.0)
            self._spools.pop(message.first).file.close()


def _stored(part: ReceivedPart, now_ms: int) -> StoredPart:
    # Each subscription gets its own parts, and the two kinds of parts may have the same Identification.
    owner = f"{part.subscription} {part.fragment.alone:d}"
    fragment = part.fragment
    return StoredPart(
        owner, TopicPath(""), part.identification, fragment.number, not fragment.more, part.content, now_ms
    )
