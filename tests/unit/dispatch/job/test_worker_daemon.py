"""The daemon that workers are forked from, as Spark's JVM talks to it."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys

import pytest

from arborcast.dispatch.job.heartbeat import started_at
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

_INT = struct.Struct(">i")


def test_a_worker_that_is_not_needed_any_more_ends_without_an_error() -> None:
    how = {"PYTHON_WORKER_FACTORY_SECRET": "s", "SPARK_REUSE_WORKER": "1"}
    # As Spark has it by default.
    how["PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"] = "1"
    command = [sys.executable, "-m", "arborcast.dispatch.job.worker_daemon", "pyspark.worker"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **how}
    ) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdin is not None
        assert daemon.stderr is not None
        (port,) = _INT.unpack(daemon.stdout.read(_INT.size))
        with (
            socket.create_connection(("127.0.0.1", port), timeout=120) as connection,
            connection.makefile("rwb") as both,
        ):
            (worker,) = _INT.unpack(both.read(_INT.size))
            assert started_at(worker)
            both.write(_INT.pack(1) + b"s")
            both.flush()
            assert both.read(_INT.size + 2) == _INT.pack(2) + b"ok"
            # With something unread in its buffer a closed connection is reset.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_until(lambda: not started_at(worker))
        daemon.stdin.close()
        assert daemon.stderr.read() == b""
