"""Datagrams of the engines of the group: a UDP socket beside the gateway's, without answers.

Each datagram costs a check of its beginning, then a digest of at most 8 KiB; the queue is bounded. Only recent
signatures of members are accepted, and repetitions are dropped as over a link. Others are counted.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter, deque

from arborcast.core.errors import InfrastructureError, PeerError, SignatureError
from arborcast.core.telemetry.metrics import Registry
from arborcast.ingest.federation.receiver import PeerReceiver
from arborcast.topic_model.records.peers import MAX_DATAGRAM, MAX_PER_PUSH, PeerPush, is_like_datagram
from arborcast.wire.errors import PeerRefused

logger = logging.getLogger(__name__)

# Datagrams that wait to be stored; at 8 KiB each they are 16 MiB.
_MOST_WAITING = 2_048

# Receive buffer of the kernel, if it permits.
_BUFFER = 4 * 1024 * 1024

# Datagrams checked before the event loop serves others; their notifications are stored together, within the limit of a
# push.
_AT_ONCE = 100
_MOST_IN_ONE = MAX_PER_PUSH // _AT_ONCE


class DatagramListener(asyncio.DatagramProtocol):
    """Used on the event loop. Before the start of the gateway is complete, everything is dropped."""

    def __init__(self, receiver: PeerReceiver, metrics: Registry) -> None:
        self._receiver = receiver
        self._waiting: deque[bytes] = deque()
        self._come = asyncio.Event()
        self.counts: Counter[str] = Counter()
        """Datagrams by outcome."""
        metrics.counted_by(
            "arborcast_federation_datagrams_total",
            "taken; dropped: garbage, unsigned (or old), refused (for another engine), unreadable, full, unstored.",
            "outcome",
            lambda: self.counts,
        )

    async def run(self, bound: socket.socket) -> None:
        """Read datagrams from this socket until cancelled."""
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, sock=bound)
        try:
            while True:
                await self._come.wait()
                await self.work()
        finally:
            transport.close()

    def datagram_received(self, data: bytes, addr: object) -> None:
        if len(data) > MAX_DATAGRAM or not is_like_datagram(data):
            self.counts["garbage"] += 1
        elif len(self._waiting) >= _MOST_WAITING:
            self.counts["full"] += 1
        else:
            self._waiting.append(data)
            self._come.set()

    async def work(self) -> None:
        """Store the queued ones. Never raises except when cancelled."""
        while self._waiting:
            pushes: dict[tuple[str, str], PeerPush] = {}
            read: Counter[tuple[str, str]] = Counter()
            for _ in range(min(_AT_ONCE, len(self._waiting))):
                push = self._read(self._waiting.popleft())
                if push is not None:
                    way = push.sender, push.to
                    known = pushes.setdefault(way, push)
                    if known is not push:
                        known.notifications.extend(push.notifications)
                    read[way] += 1
            for way, push in pushes.items():
                self.counts[await self._store(push)] += read[way]
            await asyncio.sleep(0)
        self._come.clear()

    def _read(self, data: bytes) -> PeerPush | None:
        why = "unreadable"
        try:
            push = self._receiver.read_datagram(data)
            if len(push.notifications) <= _MOST_IN_ONE:
                return push
        except SignatureError:
            why = "unsigned"
        except PeerRefused:
            why = "refused"
        except Exception as error:
            if not isinstance(error, (PeerError, InfrastructureError)):
                logger.exception("a datagram could not be read")
        self.counts[why] += 1
        return None

    async def _store(self, push: PeerPush) -> str:
        try:
            await self._receiver.take_push(push)
        except InfrastructureError:
            return "unstored"
        except PeerError:
            return "unreadable"
        except Exception:
            logger.exception("datagrams of another engine could not be taken")
            return "unstored"
        return "taken"
