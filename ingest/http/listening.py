"""The base of each server: a listening socket, and the signals that stop it."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
from collections.abc import Callable

from arborcast.core.errors import ConfigError
from arborcast.core.security.ip_addresses import EVERYWHERE

# Connections that wait to be accepted; beyond it the kernel makes clients try again after a second.
_BACKLOG = 1_024


def raise_open_files() -> None:
    """Raise the limit of open files as far as this user may: each connection is one, and a process without a free one
    cannot connect to others. The default of shells is below the limits of connections."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS has a lower limit than it names
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def listen_on(
    host: str, port: int, *, host_by: str, port_by: str, shared: bool = False, datagrams: bool = False
) -> socket.socket:
    """A listening socket, or one for `datagrams`; without a host on all addresses. Raises ConfigError for an address
    that is in use or not local; the error names the settings of host and port. A `shared` port allows several sockets
    of this user."""
    host, sort = host or EVERYWHERE, socket.SOCK_DGRAM if datagrams else socket.SOCK_STREAM
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=sort)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"{host_by} = {host!r} is not an address to listen on: {error}") from error
    try:
        if not datagrams:  # of which several sockets could have one port then
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        if not datagrams:
            listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot listen on {host} port {port}: {reason}; choose another with {port_by}") from error
    listener.setblocking(False)
    return listener


def on_signals(stop: Callable[[], None]) -> None:
    """Have SIGTERM and SIGINT stop this process. On the event loop, in the main thread."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
