"""Spark's Python worker daemon with the sink imported: workers are forked from it.

Modules imported before the fork are shared by all workers (25 MB less for each) and loaded once (0.3 s less for the
first notification). Only imports, no connections or threads, which do not survive a fork. For heartbeats see
`worker_beats`. Chosen by `spark.python.daemon.module`, so it must be importable where Spark starts Python: installed.
"""

from __future__ import annotations

import gc
import os
import socket

import pyspark.worker
from pyspark import daemon

import arborcast.dispatch.hot.sink
from arborcast.core.telemetry import log_format
from arborcast.dispatch.job import heartbeat

__all__ = ["arborcast", "pyspark"]

_serve = daemon.worker


def _worker(sock: socket.socket, authenticated: bool) -> int:
    """Spark closes the connection of a worker that had nothing to do for a minute. pyspark would print that as an
    error, for each worker of the warming up."""
    try:
        return _serve(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)


if __name__ == "__main__":
    log_format.configure_worker()
    # Objects that the collector never touches stay on the pages shared with the daemon.
    gc.collect()
    gc.freeze()
    heartbeat.beat_from_here_on()
    daemon.worker = _worker
    daemon.manager()
