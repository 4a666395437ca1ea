"""The open sockets of this process, as Linux lists them, and the listening sockets of other processes."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import select
import socket
import stat
import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil

_FOLDER = Path("/proc/self/fd")


def sockets() -> set[int]:
    """Descriptors of open sockets."""
    return {int(each.name) for each in _FOLDER.iterdir() if _is_socket(int(each.name))}


def inherited() -> set[int]:
    """The open sockets that a child process inherits."""
    return {descriptor for descriptor in sockets() if _is_inheritable(descriptor)}


def _is_socket(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def _is_inheritable(descriptor: int) -> bool:
    try:
        return os.get_inheritable(descriptor)
    except OSError:  # closed after the listing
        return False


def listening(processes: Iterable[psutil.Process]) -> Iterator[tuple[psutil.Process, str, int]]:
    """Host and port of listening TCP sockets and of UDP sockets, except for the processes' own connections."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in process.net_connections("inet"):
                if each.status == psutil.CONN_LISTEN or (each.type == socket.SOCK_DGRAM and not each.raddr):
                    host = ipaddress.ip_address(each.laddr.ip)
                    mapped = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else None
                    yield process, str(mapped or host), each.laddr.port


_TEXT = b"hello, this is no message"

# A request of Spark's transport: length of the frame, type, id of the request, length of the body.
_TO_SPARK = struct.pack(">QBqi", 21 + len(_TEXT), 3, 1, len(_TEXT)) + _TEXT

# A call of a method of an object that Python has lent to the JVM.
_TO_PY4J = b"c\np0\nhandle\ne\n"


def answers_to_stranger(port: int) -> list[bytes]:
    """The answers to clients of the protocols of py4j and Spark without the secret; empty at a closed connection."""
    with ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 60)) for _ in range(2)]
        for connection, sent in zip(connections, (_TO_PY4J, _TO_SPARK + b"\n"), strict=True):
            with contextlib.suppress(ConnectionError):
                connection.sendall(sent)
        # One of the two answers; the other waits for further bytes.
        answered, _, _ = select.select(connections, [], [], 60)
        assert answered
        return [_answer(each, each in answered) for each in connections]


def _answer(connection: socket.socket, complete: bool) -> bytes:
    if not complete:
        with contextlib.suppress(OSError):  # closed meanwhile, perhaps with an answer
            connection.shutdown(socket.SHUT_WR)
    try:
        return connection.recv(65_536)
    except OSError:  # reset
        return b""
