"""TLS handshakes: so many at a time, in all and of one address, so that those that go no further keep nobody out.

The event loop's own servers begin a handshake with whoever connects, and nobody learns who that is until it is over. So
connections are accepted here, and counted before the first byte is read.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter
from collections.abc import Callable, Hashable

from ingest.access.rates import client_key
from ingest.http.tls import ServerTls

logger = logging.getLogger(__name__)

# Accepted in one go; then the other connections have their turn.
_AT_ONCE = 64

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_EXHAUSTED_S = 1.0


class HandshakeLimiter:
    """Which handshakes there may be at a time. Pure; each has a name of the caller's choosing.

    When there are too many in all, the one that has had the longest goes: an honest one takes a moment, so whoever
    wants to keep others out has to begin new ones faster than they take, all the time, from many addresses. `key` is
    what an address counts as, None where it may have as many as it wants.
    """

    def __init__(self, maximum: int, of_one_client: int, key: Callable[[str], str | None] = client_key) -> None:
        self._maximum = maximum
        self._of_one_client = of_one_client
        self._key = key
        self._clients: dict[Hashable, str | None] = {}  # oldest first
        self._of: Counter[str] = Counter()

    def full_for(self, host: str) -> bool:
        """Whether an address has as many as it may have."""
        client = self._key(host)
        return client is not None and self._of[client] >= self._of_one_client

    def enter(self, name: Hashable, host: str) -> Hashable | None:
        """One begins. Returns another that has to go for it, None mostly."""
        client = self._clients[name] = self._key(host)
        if client is not None:
            self._of[client] += 1
        if len(self._clients) <= self._maximum:
            return None
        oldest = next(iter(self._clients))
        self.leave(oldest)
        return oldest

    def leave(self, name: Hashable) -> None:
        """One is over, however; nothing when it has gone already."""
        client = self._clients.pop(name, None)
        if client is not None:
            self._of[client] -= 1
            if not self._of[client]:
                del self._of[client]

    def __len__(self) -> int:
        return len(self._clients)


class TlsAcceptor:
    """Accepts connections from a listening socket and gives them to a protocol when TLS stands. On the event loop.

    Closes like a server of asyncio's.
    """

    def __init__(
        self,
        listener: socket.socket,
        tls: ServerTls,
        make_protocol: Callable[[], asyncio.Protocol],
        key: Callable[[str], str | None] = client_key,
    ) -> None:
        self._listener = listener
        self._tls = tls
        self._make_protocol = make_protocol
        self._room = HandshakeLimiter(tls.settings.handshakes, tls.settings.handshakes_per_client, key)
        self._loop = asyncio.get_running_loop()
        self._under_way: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._listen()

    def close(self) -> None:
        """Accept nobody any more, and cut off those who are not in yet."""
        self._loop.remove_reader(self._listener)
        if self._pause is not None:
            self._pause.cancel()
        for task in self._under_way:
            task.cancel()

    async def wait_closed(self) -> None:
        """Return when all who were cut off are gone."""
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                # The connection goes on waiting, and would wake us again at once.
                logger.error("no connection can be accepted: %s; trying again in %g s", error.strerror, _EXHAUSTED_S)
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(_EXHAUSTED_S, self._listen)
                return
            self._admit(connection, address[0])

    def _admit(self, connection: socket.socket, host: str) -> None:
        handshakes = self._tls.handshakes
        handshakes.begun += 1
        if self._room.full_for(host):
            handshakes.refused += 1
            connection.close()
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._shake_hands(connection))
        self._under_way.add(task)
        task.add_done_callback(self._over)
        crowded_out = self._room.enter(task, host)
        if isinstance(crowded_out, asyncio.Task):
            handshakes.refused += 1
            crowded_out.cancel()

    async def _shake_hands(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self._tls.context,
                ssl_handshake_timeout=self._tls.settings.handshake_timeout_s,
            )
        except OSError as error:
            # Of TLS, of the connection, or of time: the client's affair, and it is counted.
            logger.debug("a TLS handshake failed: %s", error)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._room.leave(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a connection could not be taken", exc_info=error)
