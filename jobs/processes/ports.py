"""TCP ports: is one free, who has it, and which could we take."""

from __future__ import annotations

import contextlib
import socket

import psutil

from jobs.processes.errors import PortInUse

LOOPBACK = "127.0.0.1"


def free_port(host: str = LOOPBACK) -> int:
    """A port that is free right now. The caller should bind it soon."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether we could listen on the port. Connections of a former listener in TIME_WAIT do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def is_listening(port: int, host: str = LOOPBACK, timeout: float = 0.5) -> bool:
    """Whether a process accepts connections there. `timeout` in seconds."""
    try:
        with socket.create_connection((host, port), timeout=timeout):
            return True
    except OSError:
        return False


def holder(port: int) -> str:
    """Who listens on the port, for people: "java (pid 4711)"; empty when we may not know."""
    # Seeing other users' sockets takes privileges, on macOS for any socket at all.
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                if connection.pid is None:
                    return ""
                with contextlib.suppress(psutil.Error):
                    return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
                return f"pid {connection.pid}"
    return ""


def require_free(port: int, what: str, option: str, host: str = LOOPBACK) -> None:
    """Raises PortInUse with a message that names the port, its holder and the option that chooses another."""
    if is_free(port, host):
        return
    by = holder(port)
    raise PortInUse(
        f"port {port} for {what} is in use{f' by {by}' if by else ''}; "
        f"stop that, or choose another with {option} PORT ({option} 0 takes a free one)",
        port,
    )
