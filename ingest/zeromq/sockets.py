"""The sockets of the settings, made and secured."""

from __future__ import annotations

import logging
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import zmq
import zmq.auth
from zmq.auth.thread import ThreadAuthenticator

from arborcast.core.errors import ConfigError
from arborcast.core.security.ip_addresses import is_loopback
from arborcast.ingest.settings import ZmqSettings
from arborcast.ingest.zeromq.prefixes import LONGEST_PREFIX

logger = logging.getLogger(__name__)

_CONNECTS = ">"

# Messages of one publisher that wait to be read: the default of ZeroMQ.
_RECEIVE_HWM = 1_000

# Bytes of one sender to a socket that is not read while the gateway is away; libzmq counts messages only. With a
# quarter of it a pipeline of small messages would be half as fast.
_UNREAD_BYTES = 256 * 1024 * 1024

# First delay of a reconnect; it doubles with each attempt.
_RECONNECT_MS, _LONGEST_RECONNECT_MS = 100, 30_000

# A peer whose host was switched off does not end its connection. Where the edge only receives, nothing else would
# notice: it would not connect again, and a receiver's prefixes would stay.
_ALIVE = {
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 60,
    zmq.TCP_KEEPALIVE_INTVL: 20,
    zmq.TCP_KEEPALIVE_CNT: 3,
}


@dataclass(frozen=True)
class KnownClient:
    """The gateway's user for a key."""

    user: str
    password: str


class Sockets:
    """All sockets of the settings, by the name of the setting. Raises ConfigError."""

    def __init__(self, settings: ZmqSettings, largest: int) -> None:
        """A part of a message with more than `largest` bytes is not read: its connection is closed."""
        self._settings = settings
        self._largest = largest
        self.clients = _clients(settings)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._authenticator: ThreadAuthenticator | None = None
        self._keys: tuple[bytes, bytes] | None = None
        try:
            if settings.curve_key_file:
                self._secure()
            self.xpub = self._open("subscribe", zmq.XPUB)
            self.sub = self._open("publish", zmq.SUB)
            self.pull = self._open("pipeline", zmq.PULL)
            self.router = self._open("requests", zmq.ROUTER)
            self.tasks = self._open("tasks", zmq.PUSH)
            self.results = self._open("results", zmq.PULL)
        except BaseException:
            self.close()
            raise
        if self.sub is not None:
            self.sub.subscribe(b"")

    def close(self) -> None:
        """Close all after sending queued messages."""
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.destroy(linger=500)

    def _secure(self) -> None:
        try:
            public, secret = zmq.auth.load_certificate(self._settings.curve_key_file)
        except (OSError, ValueError) as error:
            raise ConfigError(f"zmq.curve_key_file = {self._settings.curve_key_file}: {error}") from error
        if secret is None:
            raise ConfigError(f"zmq.curve_key_file = {self._settings.curve_key_file} has no secret key")
        self._keys = public, secret
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        known = SimpleNamespace(callback=lambda _domain, key: key.decode("ascii", "replace") in self.clients)
        self._authenticator.configure_curve_callback("*", known)

    def _open(self, name: str, kind: int) -> zmq.Socket[bytes] | None:
        address: str = getattr(self._settings, name)
        if not address:
            return None
        connects = address.startswith(_CONNECTS)
        address = address.removeprefix(_CONNECTS)
        if self._keys is None and not connects and not _is_loopback(address):
            raise ConfigError(
                f"zmq.{name} = {address} is reachable from the network without authentication: set "
                "zmq.curve_key_file and zmq.clients_file, or take an address of 127.0.0.1"
            )
        if connects and not _is_loopback(address):
            logger.warning(
                "zmq.%s = >%s: messages travel in clear to that address, without authentication", name, address
            )
        opened = self._context.socket(kind)
        opened.setsockopt(zmq.LINGER, 500)
        # One task at a time: otherwise the first worker to connect gets the first thousand.
        opened.setsockopt(zmq.SNDHWM, 1 if name == "tasks" else self._settings.send_hwm)
        most = _RECEIVE_HWM if kind == zmq.SUB else min(_RECEIVE_HWM, _UNREAD_BYTES // self._largest)
        opened.setsockopt(zmq.RCVHWM, max(1, most))
        # Receivers and workers send only subscriptions and their handshake.
        opened.setsockopt(zmq.MAXMSGSIZE, 2 * LONGEST_PREFIX if kind in (zmq.XPUB, zmq.PUSH) else self._largest)
        if kind == zmq.XPUB:
            opened.setsockopt(zmq.XPUB_VERBOSER, 1)  # each subscription of each connection
        for option, value in _ALIVE.items():
            opened.setsockopt(option, value)
        opened.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        opened.setsockopt(zmq.RECONNECT_IVL_MAX, _LONGEST_RECONNECT_MS)
        if self._keys is not None and not connects:
            opened.curve_publickey, opened.curve_secretkey = self._keys
            opened.curve_server = True
        try:
            (opened.connect if connects else opened.bind)(address)
        except zmq.ZMQError as error:
            opened.close(0)
            raise ConfigError(f"zmq.{name} = {address}: {error}; choose another address") from error
        return opened


def _clients(settings: ZmqSettings) -> dict[str, KnownClient]:
    if not settings.clients_file:
        return {}
    try:
        table = tomllib.loads(Path(settings.clients_file).read_text(encoding="utf-8"))
        found = {}
        for each in table["client"]:
            found[str(each["key"])] = KnownClient(str(each.get("user", "")), str(each.get("password", "")))
        return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"zmq.clients_file = {settings.clients_file} has entries [[client]] with key, user and password: {error!r}"
        ) from error


def _is_loopback(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme in ("ipc", "inproc") or is_loopback(parts.hostname or "")
