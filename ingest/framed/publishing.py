"""What one connection publishes: in the order of its frames, and many under way at a time.

Frames that came together are stored together. The next ones do not wait for Kafka's acknowledgement, only for topics
that are new: their record comes first.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from arborcast.core.errors import InfrastructureError, PeerError
from arborcast.ingest.elements.properties import producer_with
from arborcast.ingest.elements.publication import checked_key, said_in
from arborcast.ingest.framed.messages import loose_payload, topic_of
from arborcast.ingest.http.inflight import SMALL, Inflight, Reservation
from arborcast.ingest.operations.gateway import Gateway
from arborcast.ingest.operations.http_publish import read_payload
from arborcast.ingest.operations.publishing import (
    UNACCEPTED,
    Checked,
    PublishingClient,
    PublishRequest,
    check,
    joined,
    store,
)
from arborcast.topic_model.grants import Caller
from arborcast.topic_model.message_types import stored_type
from arborcast.topic_model.records.notifications import Notification
from arborcast.wire import frames
from arborcast.wire.envelope import Request
from arborcast.wire.frames import LOOSE, Frame, FrameKind, ReceiptBody
from arborcast.wire.xml_reading import memory_to_read

logger = logging.getLogger(__name__)

# So many frames are stored together; then others have their turn.
_AT_ONCE = 100

# Beyond this a connection is not read until half of them are answered.
_MOST_FRAMES = 1_000
_MOST_BYTES = 4 * 1024 * 1024

_FULL = "many publications wait"


class FrameSender(Protocol):
    """The part of the connection that is needed."""

    def send(self, data: bytes) -> None: ...

    def read(self, more: bool, why: str) -> None:
        """Leave what comes in the network for this reason, or no longer for this one; it is read when none is left."""


class _Wanted(NamedTuple):
    """A frame whose notification may be stored."""

    frame: Frame
    checked: Checked

    @property
    def notification(self) -> Notification:
        return self.checked.notifications[0]


class Publisher:
    """The publications of one connection."""

    def __init__(
        self,
        gateway: Gateway,
        inflight: Inflight,
        link: FrameSender,
        enter: Callable[[Frame], tuple[Caller | None, str]],
        refuse: Callable[[Frame, BaseException], None],
    ) -> None:
        """`enter` says who publishes, and what rates count by; `refuse` answers with an error."""
        self._gateway = gateway
        self._inflight = inflight
        self._link = link
        self._enter = enter
        self._refuse = refuse
        self._waiting: deque[Frame] = deque()
        self._under_way: set[asyncio.Task[None]] = set()
        self._reader: asyncio.Task[None] | None = None
        self._frames = 0
        self._bytes = 0
        self._reads = True
        self._memory = Reservation(inflight)

    def add(self, frame: Frame) -> None:
        """One more PUBLISH."""
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
                together: list[_Wanted] = []
                for _ in range(_AT_ONCE):
                    if not self._waiting:
                        break  # or it was closed meanwhile
                    frame = self._waiting.popleft()
                    try:
                        wanted = await self._read(frame)
                    except (PeerError, InfrastructureError) as error:
                        self._answered([frame], error)
                        continue
                    except Exception as error:
                        logger.exception("a PUBLISH failed")
                        self._answered([frame], error)
                        continue
                    if wanted.notification.message_id:
                        # A repetition is known by all that was stored with it, so it is stored alone.
                        self._store(together)
                        self._store([wanted])
                        together = []
                    else:
                        together.append(wanted)
                self._store(together)
                await asyncio.sleep(0)  # the current publications are passed to Kafka in this order
        finally:
            self._reader = None

    async def _read(self, frame: Frame) -> _Wanted:
        """The request of a frame, checked. Raises PeerError or InfrastructureError."""
        gateway = self._gateway
        caller, client = self._enter(frame)
        body = frames.read_body(frame, frames.PublishBody)
        topic, key = topic_of(body.topic), checked_key(body.key)
        said = said_in(body.valid_until, body.lifespan, body.type.strip(), body.priority, body.reliable)
        request = await self._payload(loose_payload(body.payload) if frame.flags & LOOSE else body.payload)
        source = request.source(1)
        notification = Notification(
            gateway.ids.next(),
            topic,
            source.fragment(source.node(request.operation)),
            UNACCEPTED,
            producer=producer_with(body.properties) if body.properties else b"",
            message_id=key,
            type=stored_type(str(request.operation.tag)),
        )
        publisher = PublishingClient(caller, client)
        checked = await check(gateway, PublishRequest([notification], publisher, {notification.id: said}))
        await gateway.admit({topic: ""})
        return _Wanted(frame, checked)

    async def _payload(self, payload: bytes) -> Request:
        reservation = Reservation(self._inflight)
        try:
            if not self._inflight.take(reservation, memory_to_read(payload, self._gateway.settings.max_elements)):
                raise self._inflight.no_memory()
            if len(payload) <= SMALL:
                return read_payload(payload, b"", "the payload")
            return await asyncio.to_thread(read_payload, payload, b"", "the payload")
        finally:
            reservation.release()

    def _store(self, together: Sequence[_Wanted]) -> None:
        if together:
            task = asyncio.get_running_loop().create_task(self._accept(together))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _accept(self, together: Sequence[_Wanted]) -> None:
        try:
            # All of one owner: the connection is of one client.
            new = await store(self._gateway, joined([each.checked for each in together]))
        except (PeerError, InfrastructureError) as error:
            if len(together) > 1 and isinstance(error, PeerError):
                for each in together:  # one of them is refused, and the others are not to be
                    await self._accept([each])
                return
            self._answered([each.frame for each in together], error)
        except Exception as error:
            logger.exception("PUBLISH failed")
            self._answered([each.frame for each in together], error)
        else:
            self._link.send(
                b"".join(
                    frames.encode(
                        FrameKind.RECEIPT, each.frame.correlation, ReceiptBody(each.notification.id if new else "")
                    )
                    for each in together
                )
            )
            self._answered([each.frame for each in together])

    def _answered(self, published: Sequence[Frame], error: BaseException | None = None) -> None:
        if error is not None:
            for frame in published:
                self._refuse(frame, error)
        self._count(-len(published), -sum(len(frame.body) for frame in published))

    def _count(self, number: int, size: int) -> None:
        self._frames += number
        self._bytes += size
        if size > 0:
            self._inflight.count(self._memory, size)
        else:
            self._inflight.lessen(self._memory, -size)
        share = max(self._frames / _MOST_FRAMES, self._bytes / _MOST_BYTES)
        if self._reads and share >= 1:
            self._reads = False
            self._link.read(False, _FULL)
        elif not self._reads and share <= 0.5:
            self._reads = True
            self._link.read(True, _FULL)
