"""Spark's Python worker daemon with the sink imported: workers are forked from it.

Modules imported before the fork are shared by all workers (25 MB less for each) and loaded once (0.3 s less for the
first notification). Imports only: connections and threads do not survive a fork. Selected by
`spark.python.daemon.module`, so it must be installed where Spark starts Python.
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
    """Spark closes the connection of an idle worker after a minute. pyspark would print that as an error."""
    try:
        return _serve(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)


if __name__ == "__main__":
    log_format.configure_worker()
    # Objects that the garbage collector never touches stay on the pages shared with the daemon.
    gc.collect()
    gc.freeze()
    heartbeat.start_heartbeats()
    daemon.worker = _worker
    daemon.manager()
