"""Spark's Python worker daemon with the sink already imported: workers are forked from it.

What is imported before the fork is shared by all workers (25 MB less for each) and need not be loaded by the next one
(0.3 s less for the first notification it gets). Only imports, no connections and no threads: those do not survive a
fork. It and its workers give signs of life, see `worker_beats`. Chosen by `spark.python.daemon.module`, so it has to be
importable where Spark starts Python: installed, that is.
"""

from __future__ import annotations

import gc

import pyspark.worker
from pyspark import daemon

import dispatch.hot.sink
from core.telemetry import log_format
from dispatch.job import heartbeat

__all__ = ["dispatch", "pyspark"]

if __name__ == "__main__":
    log_format.configure_worker()
    # Objects that the collector never touches stay on the pages shared with the daemon.
    gc.collect()
    gc.freeze()
    heartbeat.beat_from_here_on()
    daemon.manager()
