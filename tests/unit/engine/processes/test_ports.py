"""Ports that somebody has."""

from __future__ import annotations

import os
import socket

import pytest

from arborcast.engine.processes import processes
from arborcast.engine.processes.errors import PortInUse


def test_a_busy_port_names_port_holder_and_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PortInUse) as caught:
            processes.require_free(port, "the gateway", "--gateway-port")
    assert f"port {port} for the gateway is in use by " in str(caught.value)
    assert f"(pid {os.getpid()})" in str(caught.value)
    assert "--gateway-port PORT" in str(caught.value)


def test_a_port_is_free_again_though_connections_linger() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)), server.accept()[0] as accepted:
        accepted.shutdown(socket.SHUT_RDWR)  # the side that closes first keeps the connection in TIME_WAIT
    server.close()
    processes.require_free(port, "Kafka", "--kafka-port")
