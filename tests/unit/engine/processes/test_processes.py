"""Waits before restarts, as a table; what processes use; ports that are in use."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import psutil
import pytest

from arborcast.engine.processes import processes
from arborcast.engine.processes.errors import PortInUse
from arborcast.engine.processes.processes import ManagedProcess, RestartWaits, usage

WAITS = RestartWaits(first_s=0.5, longest_s=30.0, forget_s=60.0)


@pytest.mark.parametrize(
    ("failures", "wait"), [(1, 0.5), (2, 1.0), (3, 2.0), (6, 16.0), (7, 30.0), (8, 30.0), (10**9, 30.0)]
)
def test_doubles_up_to_the_longest(failures: int, wait: float) -> None:
    managed = ManagedProcess(WAITS)
    managed.failures = failures - 1
    assert managed.died(100.0, healthy_s=1.0) == wait
    assert not managed.is_due(99.9 + wait)
    assert managed.is_due(100.0 + wait)


@pytest.mark.parametrize(("failures", "ran", "after"), [(0, 1.0, 1), (4, 59.9, 5), (4, 60.0, 1), (4, 1e9, 1)])
def test_a_long_healthy_run_forgives(failures: int, ran: float, after: int) -> None:
    managed = ManagedProcess(WAITS)
    managed.failures = failures
    managed.died(0.0, ran)
    assert managed.failures == after


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process is charged for its ended children")
def test_what_ended_children_used_is_counted_where_it_is_asked_for() -> None:
    busy = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)
    me = [psutil.Process()]
    ended = os.times().children_user + os.times().children_system
    assert ended > 0.4  # in hundredths
    own = usage(me, ended_children=False).cpu_seconds
    assert usage(me).cpu_seconds >= own + ended - 0.1
    assert own <= sum(os.times()[:2]) + 0.1


def test_a_port_is_in_use_until_its_server_closes() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    with pytest.raises(PortInUse) as caught:
        processes.require_free(port, "the gateway", "--gateway-port")
    for part in (f"port {port} for the gateway is in use by ", f"(pid {os.getpid()})", "--gateway-port PORT"):
        assert part in str(caught.value)
    with socket.create_connection(("127.0.0.1", port)), server.accept()[0] as accepted:
        accepted.shutdown(socket.SHUT_RDWR)  # the side that closes first keeps the connection in TIME_WAIT
    server.close()
    processes.require_free(port, "Kafka", "--kafka-port")
