"""The publications of one connection: in the order of its frames, many in progress at a time.

Frames that arrive together are stored together. The next ones do not wait for Kafka's acknowledgement, only for the
records of new topics.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from arborcast.core.single_flight import spawn
from arborcast.ingest.elements.properties import producer_with
from arborcast.ingest.elements.publication import checked_key, publication_with
from arborcast.ingest.framed.messages import topic_of
from arborcast.ingest.http.inflight import Reservation
from arborcast.ingest.operations.gateway import Gateway
from arborcast.ingest.operations.publishing import Checked, PublishingClient, check_message, loose_payload, store_each
from arborcast.wire import frames
from arborcast.wire.frames import LOOSE, Frame, FrameKind, ReceiptBody

# Maximum number of frames stored together, before those of other connections.
_AT_ONCE = 100

# Beyond this a connection is not read until half of them are answered.
_MOST_FRAMES = 1_000
_MOST_BYTES = 4 * 1024 * 1024

_FULL = "many publications wait"


class FrameLink(Protocol):
    """The connection of a session."""

    def send(self, data: bytes) -> None: ...

    def read(self, more: bool, why: str) -> None:
        """Leave received data in the network for this reason, or no longer for it; without a reason it is read."""

    async def until_writable(self) -> None:
        """Return when the client reads its messages."""

    def known(self) -> None:
        """CONNECTED is sent: frames may have framed.max_frame_bytes."""

    def close(self) -> None:
        """Send the rest, then close."""


class Publisher:
    """The publications of one connection."""

    def __init__(
        self,
        gateway: Gateway,
        link: FrameLink,
        enter: Callable[[Frame], PublishingClient],
        refuse: Callable[[Frame, Exception], None],
    ) -> None:
        """`enter` returns the client of a frame, `refuse` answers with an error."""
        self._gateway = gateway
        self._inflight = gateway.inflight
        self._link = link
        self._enter = enter
        self._refuse = refuse
        self._waiting: deque[Frame] = deque()
        self._under_way: set[asyncio.Task[None]] = set()
        self._reader: asyncio.Task[None] | None = None
        self._frames = self._bytes = 0
        self._reads = True
        self._memory = Reservation(gateway.inflight)

    def add(self, frame: Frame) -> None:
        self._waiting.append(frame)
        self._count(1, len(frame.body))
        if self._reader is None:
            self._reader = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Return when the current publications are stored or failed; their answers are dropped."""
        self._waiting.clear()
        while tasks := [task for task in (self._reader, *self._under_way) if task is not None]:
            await asyncio.wait(tasks)
        self._memory.release()

    async def _run(self) -> None:
        try:
            while self._waiting:
                together: list[tuple[Frame, Checked]] = []
                for _ in range(_AT_ONCE):
                    if not self._waiting:
                        break  # or it was closed meanwhile
                    frame = self._waiting.popleft()
                    try:
                        checked = await self._checked(frame)
                    except Exception as error:
                        self._answered(frame, error)
                        continue
                    if checked.notifications[0].message_id:
                        # The fingerprint of a repetition is that of a whole request, so this one is stored alone.
                        self._store(together)
                        self._store([(frame, checked)])
                        together = []
                    else:
                        together.append((frame, checked))
                self._store(together)
                await asyncio.sleep(0)  # the current publications are passed to Kafka in this order
        finally:
            self._reader = None

    async def _checked(self, frame: Frame) -> Checked:
        """Raises PeerError or InfrastructureError."""
        publisher = self._enter(frame)
        body = frames.read_body(frame, frames.PublishBody)
        topic, key = topic_of(body.topic), checked_key(body.key)
        publication = publication_with(body.valid_until, body.lifespan, body.type.strip(), body.priority, body.reliable)
        return await check_message(
            self._gateway,
            publisher,
            topic,
            loose_payload(body.payload) if frame.flags & LOOSE else body.payload,
            publication,
            producer=producer_with(body.properties) if body.properties else b"",
            message_id=key,
        )

    def _store(self, together: Sequence[tuple[Frame, Checked]]) -> None:
        if together:
            spawn(self._under_way, self._accept(together))

    async def _accept(self, together: Sequence[tuple[Frame, Checked]]) -> None:
        # All of one owner: the connection is of one client.
        results: Sequence[bool | Exception]
        try:
            results = await store_each(self._gateway, [checked for _, checked in together])
        except Exception as error:
            results = [error] * len(together)
        receipts = bytearray()
        for (frame, checked), result in zip(together, results, strict=True):
            if isinstance(result, bool):
                receipt = ReceiptBody(checked.notifications[0].id if result else "")
                receipts += frames.encode(FrameKind.RECEIPT, frame.correlation, receipt)
        if receipts:
            self._link.send(bytes(receipts))
        for (frame, _), result in zip(together, results, strict=True):
            self._answered(frame, None if isinstance(result, bool) else result)

    def _answered(self, frame: Frame, error: Exception | None) -> None:
        if error is not None:
            self._refuse(frame, error)
        self._count(-1, -len(frame.body))

    def _count(self, number: int, size: int) -> None:
        self._frames += number
        self._bytes += size
        if size > 0:
            self._inflight.count(self._memory, size)
        else:
            self._inflight.shrink(self._memory, -size)
        share = max(self._frames / _MOST_FRAMES, self._bytes / _MOST_BYTES)
        if self._reads and share >= 1:
            self._reads = False
            self._link.read(False, _FULL)
        elif not self._reads and share <= 0.5:
            self._reads = True
            self._link.read(True, _FULL)
