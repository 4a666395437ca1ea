"""The outbound policy of tests: their receivers are on loopback, which is refused by default."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from arborcast.core.security.outbound import AddressPolicy, OutboundSettings

THIS_MACHINE = AddressPolicy(OutboundSettings(scope="loopback"))
"""Loopback and public addresses; other addresses of the test machine are refused."""


@contextmanager
def unresponsive_port() -> Iterator[int]:
    """A port of this machine where connecting does not end: the accept queue of its listener is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(10):
            one = stack.enter_context(socket.socket())
            one.settimeout(0.1)
            try:
                one.connect(listener.getsockname())
            except TimeoutError:
                yield int(listener.getsockname()[1])
                return
        raise OSError(errno.EADDRNOTAVAIL, "the queue of a listener has no end here")
