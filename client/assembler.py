"""Joining the parts in which messages come: from an Arborcast broker, or an old one.

Parts may come in any order and more than once. Those of large messages wait on the disk. What is joined is the content
as subscribers of the older form read it; what lacks parts for too long is given up, and said in the log.
"""

from __future__ import annotations

import itertools
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import IO

from arborcast.client.received import PartOf, ReceivedMessage
from arborcast.topic_model.projections.open_messages import OpenMessage, OpenMessages
from arborcast.topic_model.records.fragments import Reason, StoredPart
from arborcast.topic_model.topics import TopicPath

logger = logging.getLogger(__name__)

_COPIED_AT_ONCE = 1024 * 1024


@dataclass
class _Spool:
    """The parts of one message: where each is, by the number of its record."""

    file: tempfile.SpooledTemporaryFile[bytes]
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    size: int = 0

    def add(self, record: int, content: bytes) -> None:
        self.file.seek(self.size)
        self.file.write(content)
        self.places[record] = self.size, len(content)
        self.size += len(content)

    def write(self, message: OpenMessage, to: IO[bytes]) -> None:
        """All parts in their order."""
        for _, record in sorted(message.offsets()):
            start, size = self.places[record]
            self.file.seek(start)
            shutil.copyfileobj(_Stretch(self.file, size), to, _COPIED_AT_ONCE)


@dataclass
class _Stretch:
    """So much of a file, from where it is."""

    file: IO[bytes]
    left: int

    def read(self, size: int = -1) -> bytes:
        found = self.file.read(min(size, self.left) if size >= 0 else self.left)
        self.left -= len(found)
        return found


class Assembler:
    """Joins parts; several threads may share it. A Listener has one by itself.

    A message of up to `memory_bytes` has its `payload`; of a larger one that is empty, and its `file` is open for
    reading: a temporary file, which is gone when it is closed. Without a further part for `timeout_s` a message is
    given up; so is one of more than `max_bytes`, and the oldest when more than `max_open` lack parts.
    """

    def __init__(
        self,
        *,
        memory_bytes: int = 1024 * 1024,
        max_bytes: int = 1024 * 1024 * 1024,
        max_open: int = 1_000,
        timeout_s: float = 300.0,
        folder: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`folder` is where temporary files are, the system's when left out."""
        self._memory_bytes = memory_bytes
        self._max_bytes = max_bytes
        self._max_open = max_open
        self._timeout_s = timeout_s
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._messages = OpenMessages()
        self._spools: dict[int, _Spool] = {}  # by the record of their first part
        self._numbers = itertools.count()

    @property
    def open(self) -> int:
        """How many messages lack parts."""
        return len(self._messages.open)

    @property
    def given_up(self) -> int:
        """How many messages were given up."""
        return self._messages.given_up

    @contextmanager
    def joined(self, received: ReceivedMessage) -> Iterator[ReceivedMessage | None]:
        """The message itself if it is none in parts; the whole when it is the part that was missing; else None.

        What the caller raises means that it has not taken the message: when its last part comes again, it is given once
        more.
        """
        if received.part is None:
            yield received
            return
        with self._lock:
            message = self._take(received.part)
            whole = None if message is None else self._whole(message, received)
        try:
            yield whole
        except BaseException:
            if whole is not None and whole.file is not None:
                whole.file.close()
            raise
        if message is not None:
            with self._lock:
                self._end(message)

    def close(self) -> None:
        """Give up all that lacks parts."""
        with self._lock:
            for spool in self._spools.values():
                spool.file.close()
            self._spools.clear()
            self._messages = OpenMessages()

    def _take(self, received: PartOf) -> OpenMessage | None:
        """The message that is complete with this part."""
        now = self._clock()
        self._look(now)
        part = _stored(received, int(now * 1000))
        known = self._messages.again(part)
        if known is not None:
            return known if known.at in self._messages.complete else None
        if why := self._messages.contradiction(part):
            # As it is with a broker that was started anew, and counts from 0 again.
            logger.warning("%r is given up: its part %d arrived again, and %s", part.identification, part.number, why)
            self._give_up(self._messages.open[part.owner, part.identification], "content")
        record = next(self._numbers)
        self._messages.apply(part, record, now)
        message = self._messages.complete.get(record) or self._messages.open[part.owner, part.identification]
        spool = self._spools.get(message.first)
        if spool is None:
            made = tempfile.SpooledTemporaryFile(self._memory_bytes, dir=self._folder)  # noqa: SIM115  # kept
            spool = self._spools[message.first] = _Spool(made)
        spool.add(record, part.content)
        if message.bytes > self._max_bytes:
            self._give_up(message, "size")
            return None
        return message if message.complete else None

    def _look(self, now: float) -> None:
        """Give up what is due; complete ones, too, whose receiver has not taken them."""
        for message in [*self._messages.open.values(), *self._messages.complete.values()]:
            if now - message.seen >= self._timeout_s:
                self._give_up(message, "time")
        while len(self._messages.open) > self._max_open:
            self._give_up(min(self._messages.open.values(), key=lambda each: each.seen), "time")

    def _give_up(self, message: OpenMessage, reason: Reason) -> None:
        said = message.given_up(reason, int(self._clock() * 1000))
        logger.warning("%r is given up: it has the parts %s and lacks %s", message.key[1], said.had, said.missing)
        self._messages.apply(said, next(self._numbers), 0.0)
        self._spools.pop(message.first).file.close()

    def _whole(self, message: OpenMessage, received: ReceivedMessage) -> ReceivedMessage:
        spool = self._spools[message.first]
        if spool.size > self._memory_bytes:
            made = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115  # the receiver's from now on
            spool.write(message, made)
            made.seek(0)
            return replace(received, payload=b"", file=made, part=None)
        with tempfile.SpooledTemporaryFile(dir=self._folder) as small:
            spool.write(message, small)
            small.seek(0)
            return replace(received, payload=small.read(), part=None)

    def _end(self, message: OpenMessage) -> None:
        if message.at in self._messages.complete:
            self._messages.apply(message.assembled(), next(self._numbers), 0.0)
            self._spools.pop(message.first).file.close()


def _stored(part: PartOf, now_ms: int) -> StoredPart:
    # Each subscription gets its own; and the same Identification may be that of another kind of parts.
    owner = f"{part.subscription} {part.fragment.alone:d}"
    fragment = part.fragment
    return StoredPart(
        owner, TopicPath(""), part.identification, fragment.number, not fragment.more, part.content, now_ms
    )
