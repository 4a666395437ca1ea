"""The lease of a worker on another host, whose end the driver cannot observe.

Every other second the worker queries the end of the log `feed` and reads to there. From the time of the query it may
begin pushes, park and give up for HOLD_S (`core.fence`); after LEASE_S its process ends. A driver that has written the
end of a run begins the next one LEASE_S later. No clocks of two hosts are compared: both measure durations.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from arborcast.core import fence
from arborcast.core.backoff import Backoff
from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.consumer import LogConsumer
from arborcast.core.eventlog.topics import FEED_LOG, PROGRESS_LOG
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.settings import KafkaSettings
from arborcast.core.threads import Service
from arborcast.dispatch.job.lease import HOLD_S, LEASE_S, RENEW_S
from arborcast.dispatch.realtime.messages import WorkerProgress, encode_progress

# After a query of this duration there is time for another within HOLD_S.
_REQUEST_S = 2.0

_CHECK_S = 0.02


def renewed_at(
    query_end: Callable[[], int], read_to: Callable[[], int], clock: Callable[[], float], wait: Callable[[], bool]
) -> float | None:
    """The time from which a renewed lease counts; None if it is not renewed. `query_end` returns the end of the log,
    `read_to` the position read so far; `wait` waits for a moment, and returns whether to give up."""
    requested_at = clock()
    end = query_end()
    while read_to() < end:
        if wait() or clock() >= requested_at + HOLD_S:
            return None
    return requested_at


@contextmanager
def worker_lease(kafka: KafkaSettings, run: int, task: int, read_to: Callable[[], int]) -> Iterator[None]:
    """A context around a task: `fence.wait` waits for its lease, and without one the process ends. `read_to` returns
    the offset to which the task has read `feed` without the end of its run; -1 before its first record."""
    kafka = dataclasses.replace(kafka, request_timeout_s=min(kafka.request_timeout_s, _REQUEST_S))
    feed, progress = LogConsumer(kafka, FEED_LOG), LogWriter(kafka, PROGRESS_LOG)
    alive = encode_progress(WorkerProgress(run, -1, -1, run, task=task, pid=os.getpid(), alive=True))

    def step() -> float:
        try:
            at = renewed_at(feed.end, read_to, fence.clock, lambda: service.wait(_CHECK_S))
            if at is not None:
                if not service.stopping:
                    fence_until(at + HOLD_S)
                    # A thread outside the interpreter, whose lock may be held longer.
                    faulthandler.dump_traceback_later(max(at + LEASE_S - fence.clock(), 0.001), exit=True)
                progress.append_encoded([alive])
        except InfrastructureError:
            feed.close()
            raise
        return RENEW_S

    def close() -> None:
        feed.close()
        progress.close()

    service = Service("lease", step, backoff=Backoff(RENEW_S, RENEW_S), close=close, what="the lease of this worker")
    with fence.own() as fence_until:
        service.start()
        try:
            yield
        finally:
            service.stop(2 * _REQUEST_S + 1)
            faulthandler.cancel_dump_traceback_later()
