"""A task of real time in one of Spark's Python workers, for the whole run.

One thread reads Spark's rows, another the driver's updates in the log `feed`; the main thread does the rest (`task`).
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING

from pyspark import TaskContext

from arborcast.core.errors import ArborcastError, InfrastructureError
from arborcast.core.eventlog.consumer import LogConsumer
from arborcast.core.threads import start_thread
from arborcast.dispatch.hot.worker import worker_for
from arborcast.dispatch.job import heartbeat
from arborcast.dispatch.realtime.messages import ProgressLog, UpdateReader
from arborcast.dispatch.realtime.task import RealtimeJob, realtime_task
from arborcast.dispatch.realtime.worker_lease import worker_lease

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

# The maximum of rows read ahead, and of their bytes. A larger row is read alone.
_AHEAD = 1_000
_AHEAD_BYTES = 16 * 1024 * 1024

# Spark's property of a task with the number of its batch.
_BATCH_ID = "streaming.sql.batchId"


def push_rows(job: RealtimeJob, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Push rows until the input ends; for `mapInArrow`, with the columns value, partition and offset.

    Nothing is yielded before the end: the JVM reads a worker's output only when it cannot write its input, so a worker
    with unread output would block.
    """
    import pyarrow as pa  # batch workers never load it

    with heartbeat.task():
        try:
            taken = _push_rows(job, batches)
        except BaseException as error:
            logger.error("a task in real time ends: %s", error, exc_info=not isinstance(error, ArborcastError))
            # Spark would notice the exception with its next row, perhaps in an hour. The driver notices the end of the
            # process at once.
            os._exit(1)
    if taken is None:
        # The query was stopped, and nothing reads the output. pyspark would print that as an error.
        os._exit(0)
    yield pa.RecordBatch.from_pydict({"taken": pa.array([taken], pa.int64())})


def _push_rows(job: RealtimeJob, batches: Iterable[pa.RecordBatch]) -> int | None:
    """The number of taken notifications; None after a requested stop."""
    task = TaskContext.get()
    number = task.partitionId() if task is not None else 0
    # In place of the task of a dead worker, or in a second batch, it would begin with the state of the start of the
    # run: the query is started again behind the settled position.
    if task is not None and (task.attemptNumber() > 0 or task.getLocalProperty(_BATCH_ID) != "0"):
        raise InfrastructureError("this run has had a task of this partition: the query is started again")
    worker = worker_for(job.settings, job.gauge_file)
    kafka, wake = job.settings.kafka, worker.transport.wake
    with (
        closing(LogConsumer(kafka, "control")) as control,
        closing(ProgressLog(kafka)) as progress,
        closing(UpdateReader(kafka, job.number, wake)) as updates,
        nullcontext() if job.base is None else worker_lease(kafka, job.number, number, lambda: updates.read_to),
    ):
        running = realtime_task(job, worker, number, updates, progress, control.end)
        rows = _Rows(batches, wake)
        updates.start()
        rows.start()
        running.run(rows)
    worker.settled()
    worker.rest()
    return None if running.stopped else running.taken.count


class _Rows:
    """The rows of a task, read by a thread."""

    def __init__(self, batches: Iterable[pa.RecordBatch], wake: Callable[[], None]) -> None:
        self._batches = batches
        self._wake = wake
        self._rows: deque[tuple[bytes, int, int]] = deque()
        self._bytes = self._dropped = 0  # bytes of the rows read, and of those dropped
        self._room = threading.Condition()
        self._full = False  # the reading thread waits for room
        self.ended = False
        self.last_offset = -1
        self.error: BaseException | None = None

    def start(self) -> None:
        start_thread("rows", self._read)

    def first(self) -> tuple[bytes, int, int] | None:
        return self._rows[0] if self._rows else None

    def drop_first(self, deliveries: int = 0) -> None:
        self._dropped += len(self._rows.popleft()[0])
        if self._full:
            with self._room:
                self._room.notify()

    @property
    def over(self) -> bool:
        return self.ended and not self._rows

    def _read(self) -> None:
        try:
            for batch in self._batches:
                values, partitions, offsets = batch.columns
                rows = [
                    (values[number].as_py(), partitions[number].as_py(), offset)
                    for number, offset in enumerate(offsets.to_pylist())
                    if offset is not None  # a row without an offset is filler
                ]
                self._wait_for_room(len(rows), sum(len(value) for value, _, _ in rows))
                if rows:
                    self.last_offset = rows[-1][2]
                    self._rows.extend(rows)
                    if len(self._rows) <= len(rows):
                        self._wake()  # with earlier rows the main thread is awake
        except BaseException as error:
            self.error = error
        self.ended = True
        self._wake()

    def _wait_for_room(self, count: int, size: int) -> None:
        def is_room() -> bool:
            more, large = len(self._rows) + count > _AHEAD, self._bytes - self._dropped + size > _AHEAD_BYTES
            return not (self._rows and (more or large))

        with self._room:
            self._full = True  # before the check, so that a row dropped after it notifies
            self._room.wait_for(is_room)
            self._full = False
        self._bytes += size
