"""Accepting connections, and TLS: the context that the gateway listens with, certificates that are replaced while it
runs."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from arborcast.core.errors import ConfigError
from arborcast.core.files import Stamp, access_stamp
from arborcast.ingest.access.rates import PeerConnections, client_key
from arborcast.ingest.access.settings import TlsSettings

logger = logging.getLogger(__name__)

_CHECK_INTERVAL_S = 10.0


@dataclass
class Handshakes:
    """Counts of handshakes. One that neither succeeded nor was refused has failed, or is in progress."""

    begun: int = 0
    succeeded: int = 0
    refused: int = 0


class ServerTls:
    """The context that a server listens with. The constructor raises ConfigError for files that cannot be used."""

    def __init__(self, settings: TlsSettings) -> None:
        self.settings = settings
        self.handshakes = Handshakes()
        self.context = _context(settings)
        self._stamps = self._current_stamps()
        self._logged = ""  # the last problem

    async def follow_files(self) -> None:
        """Load renewed certificates, until cancelled. Open connections keep theirs."""
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            self.refresh()

    def refresh(self) -> bool:
        """Take over the certificate and its key if they have changed; whether it was done.

        Authorities of clients are only read at the start: OpenSSL can take up new ones, but not forget old ones.
        """
        stamps = self._current_stamps()
        if stamps == self._stamps:
            return False
        try:
            # Tried on another one first: a key that does not go with its certificate would spoil the one in use.
            _context(self.settings)
            _load(self.context, self.settings)
        except ConfigError as error:
            # Tried again, as with too many open files: later the certificate would expire in use.
            if str(error) != self._logged:
                logger.error("%s; the previous certificate stays in use", error)
            self._logged = str(error)
            return False
        self._stamps, self._logged = stamps, ""
        logger.info("the certificate %s was read again", self.settings.certificate_file)
        return True

    def _current_stamps(self) -> tuple[object, ...]:
        found: list[tuple[Stamp, int] | None] = []
        for name in (self.settings.certificate_file, self.settings.key_file):
            try:
                found.append(access_stamp(Path(name).stat()))
            except OSError:
                found.append(None)
        return tuple(found)


def _context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if settings.minimum == "1.3" else ssl.TLSVersion.TLSv1_2
    # A client must not make us compute key exchanges again and again on one connection.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])
    _load(context, settings)
    if settings.client_ca_file:
        try:
            context.load_verify_locations(settings.client_ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"tls.client_ca_file = {settings.client_ca_file} cannot be used: {error}") from error
        # Optional: a client without one may have other credentials; HTTP reports missing ones. An invalid certificate
        # always closes the connection.
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _load(context: ssl.SSLContext, settings: TlsSettings) -> None:
    try:
        # Without a password, OpenSSL would read one from a terminal, which does not exist.
        context.load_cert_chain(settings.certificate_file, settings.key_file or None, lambda: settings.key_password)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"tls.certificate_file = {settings.certificate_file} and tls.key_file = {settings.key_file} cannot be "
            f"used: {error}"
        ) from error


def certificate_names(certificate: Mapping[str, Any], kind: str) -> list[str]:
    """The names of a kind in a certificate, as the ssl module shows it: common_name, dns, email, uri or subject."""
    if kind == "common_name":
        return [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    if kind == "subject":
        subject = [pair for part in certificate.get("subject", ()) for pair in part]
        # As RFC 4514 writes it: the most particular first.
        short = {"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU", "countryName": "C",
                 "domainComponent": "DC", "localityName": "L", "stateOrProvinceName": "ST"}  # fmt: skip
        return [",".join(f"{short.get(key, key)}={_escaped(value)}" for key, value in reversed(subject))]
    label = {"dns": "DNS", "email": "email", "uri": "URI"}[kind]
    return [value for key, value in certificate.get("subjectAltName", ()) if key == label]


def _escaped(value: str) -> str:
    return "".join(f"\\{char}" if char in ',+"\\<>;=' else char for char in value)


# Accepted in one go; then the other connections have their turn.
_AT_ONCE = 64

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_EXHAUSTED_S = 1.0


class Acceptor:
    """Accepts connections from a listening socket and passes them to a protocol, with TLS after the handshake. On the
    event loop.

    Closes like a server of asyncio. The event loop's own servers accept one connection per iteration: while large
    bodies arrive on many connections an iteration takes tens of milliseconds, and a new client would wait for an
    iteration per client before it. And they begin a handshake with every client and report it only at its end. Here
    handshakes are counted before the first byte is read, so stalled ones do not exclude other clients. With too many in
    total the oldest is closed: an honest handshake is short, so an attack needs new ones all the time, at a high rate,
    from many addresses.
    """

    def __init__(
        self,
        listener: socket.socket,
        tls: ServerTls | None,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        key: Callable[[str], str | None] = client_key,
    ) -> None:
        self._listener = listener
        self._tls = tls
        self._make_protocol = make_protocol
        self._peers = PeerConnections(0 if tls is None else tls.settings.handshakes_per_client, key)
        self._hosts: dict[asyncio.Task[None], str] = {}  # of counted handshakes, oldest first
        self._loop = asyncio.get_running_loop()
        self._under_way: set[asyncio.Task[None]] = set()
        self._unstarted: set[socket.socket] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._listen()

    def close(self) -> None:
        """Stop listening, and cut off unfinished handshakes and new connections."""
        if self._listener.fileno() != -1:  # not closed yet
            self._loop.remove_reader(self._listener)
            self._listener.close()
        if self._pause is not None:
            self._pause.cancel()
        for task in self._under_way:
            task.cancel()

    async def wait_closed(self) -> None:
        """Return when all that were cut off are closed."""
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
                # The connection stays in the queue, and the loop would call us again at once.
                logger.error("no connection can be accepted: %s; trying again in %g s", error.strerror, _EXHAUSTED_S)
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(_EXHAUSTED_S, self._listen)
                return
            self._admit(connection, address[0])

    def _admit(self, connection: socket.socket, host: str) -> None:
        if self._tls is None:
            self._begin(connection)
            return
        handshakes = self._tls.handshakes
        handshakes.begun += 1
        if self._peers.opened(host):
            self._peers.closed(host)
            handshakes.refused += 1
            connection.close()
            return
        self._hosts[self._begin(connection)] = host
        if len(self._hosts) > self._tls.settings.handshakes:
            oldest = next(iter(self._hosts))
            self._leave(oldest)
            handshakes.refused += 1
            oldest.cancel()

    def _begin(self, connection: socket.socket) -> asyncio.Task[None]:
        connection.setblocking(False)
        self._unstarted.add(connection)
        task = self._loop.create_task(self._connect(connection))
        self._under_way.add(task)
        task.add_done_callback(partial(self._over, connection))
        return task

    def _leave(self, task: asyncio.Task[None]) -> None:
        host = self._hosts.pop(task, None)  # None where it was closed for another
        if host is not None:
            self._peers.closed(host)

    async def _connect(self, connection: socket.socket) -> None:
        self._unstarted.discard(connection)  # the event loop closes it from here on
        tls = self._tls
        try:
            await self._loop.connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=None if tls is None else tls.context,
                ssl_handshake_timeout=None if tls is None else tls.settings.handshake_timeout_s,
            )
        except OSError as error:
            # A TLS error, a lost connection, or a timeout: caused by the client, and counted.
            logger.debug("a connection or its TLS handshake failed: %s", error)

    def _over(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        if connection in self._unstarted:  # cancelled before its first step
            self._unstarted.discard(connection)
            connection.close()
        self._under_way.discard(task)
        self._leave(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a connection could not be taken", exc_info=error)
