"""The sink of the batch mode: runs in Spark's Python workers, once per partition and round.

It returns when the outcomes are in the `attempts` log and undelivered messages in the `parked` log, so Spark's end of a
batch is the end of its work.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyspark import TaskContext
from pyspark.accumulators import Accumulator

from arborcast.core import liveness
from arborcast.dispatch.hot.intake import Exclusions
from arborcast.dispatch.hot.intervals import encoded
from arborcast.dispatch.hot.recovered import OutcomeEnds, RecoveredDeliveries, parked_in_batch, settled_in_batch
from arborcast.dispatch.hot.sink_journal import OUTCOMES_TIMEOUT_S
from arborcast.dispatch.hot.task import PartitionTask, TaskJob
from arborcast.dispatch.hot.worker import Worker, forget_worker, worker_for
from arborcast.dispatch.job import heartbeat
from arborcast.dispatch.matching.view import SharedView
from arborcast.dispatch.redelivery.partition_reports import PartitionReport

# Bytes of the notifications of a round, and of further rows that a task reads. A batch with more in a partition costs
# the worker, and the next batches have fewer rows.
_MOST_BYTES = 256 * 1024 * 1024

# A row of the `notifications` log from the query: value, partition, offset. Spark's Row is a tuple; access by name
# takes a microsecond.
SourceRow = tuple[bytearray, int, int]


@dataclass(frozen=True, kw_only=True)
class SinkJob(TaskJob):
    """The parameters of a round: a task takes notifications behind the offsets `done`, up to `most` deliveries, and
    writes behind the ends `outcomes`."""

    view: SharedView
    outcomes: OutcomeEnds = field(default_factory=OutcomeEnds)
    exclusions: Exclusions = field(default_factory=Exclusions)
    done: Mapping[int, int] = field(default_factory=dict)
    most: int = sys.maxsize


class RoundRows:
    """The rows of a partition that belong to a round: those behind the offsets `done`, up to `most` deliveries or a
    limit of bytes. Reads the others, too, up to that limit: Spark discards a worker that leaves rows unread."""

    error: BaseException | None = None
    last_offset = -1

    def __init__(self, rows: Iterable[SourceRow], done: Mapping[int, int], most: int) -> None:
        self._rows = iter(rows)
        self._done = done
        self._left, self._bytes_left = most, _MOST_BYTES
        self._first: tuple[bytes, int, int] | None = None
        self.over = False
        self.done: dict[int, int] = {}
        """The last offset of each partition that was taken."""
        self.rest = False
        """Whether there are rows for the next round."""
        self.read = self.size = 0
        """The number of rows read, and their bytes."""
        self.unread = False
        """Whether there are more rows."""

    def first(self) -> tuple[bytes, int, int] | None:
        if self._first is not None or self.over:
            return self._first
        for value, partition, offset in self._rows:
            liveness.beat()
            self.read += 1
            self.size += len(value)
            if offset > self._done.get(partition, -1) and not self.rest:
                if self._left > 0 and self._bytes_left > 0:
                    self._first = bytes(value), partition, offset
                    return self._first
                self.rest = True
            if self.rest:
                self._bytes_left -= len(value)
                if self._bytes_left < -_MOST_BYTES:
                    self.unread = True
                    break
        self.over = True
        return None

    def drop_first(self, deliveries: int = 0) -> None:
        row, self._first = self._first, None
        if row is not None:
            # Each partition of the log is one task, as long as the source sets no minPartitions.
            self.done[row[1]] = row[2]
            self._left -= max(1, deliveries)
            self._bytes_left -= len(row[0])


def round_task(job: SinkJob, worker: Worker, known: RecoveredDeliveries) -> PartitionTask:
    recipients = job.view.open()  # the control log was read to its end before the round
    return PartitionTask(
        worker,
        job,
        _task(),
        known,
        job.exclusions,
        lambda notification, *_: recipients.of(notification),
        known.number,
        control=job.view.control,
        ends=lambda: worker.gauge.stops,
    )


def push_partition(job: SinkJob, reports: Accumulator[list[PartitionReport]], rows: Iterable[SourceRow]) -> None:
    """Push the notifications of one partition to their subscribers, and report. Failures of receivers never raise.
    Raises InfrastructureError when the outcomes cannot be written, RecordVersionError for records of a newer
    version."""
    with heartbeat.task():
        worker = worker_for(job.settings, job.gauge_file)
        try:
            known, parked, gone = _before(job)
            held = worker.journal.parked.held
            held.begin_batch(job.exclusions.held | parked)
            task, taken = round_task(job, worker, known), RoundRows(rows, job.done, job.most)
            task.run(taken)
            if taken.unread:
                worker.await_answers()  # Spark ends this process
            report = task.intake.outcomes.report
            report.done, report.rest = taken.done, taken.rest
            if task.left is not None:
                report.done, report.left = dict.fromkeys(taken.done, task.left - 1), True
            report.read, report.size, report.unread = taken.read, taken.size, taken.unread
            report.passed = encoded(task.intake.intervals.passed)
            report.reach = held.take_reach()
            report.gone |= gone
            report.repeated = _is_repeated()
        except BaseException:
            forget_worker()
            raise
        reports.add([report])
        worker.settled()
        worker.rest()


def _task() -> int:
    task = TaskContext.get()
    return task.partitionId() if task is not None else 0


def _is_repeated() -> bool:
    """Whether Spark repeats this task because its worker died."""
    task = TaskContext.get()
    return task is not None and task.attemptNumber() > 0


def _before(job: SinkJob) -> tuple[RecoveredDeliveries, frozenset[str], frozenset[str]]:
    """The deliveries of earlier runs, and of an earlier attempt of this task. That attempt's report was lost: also
    returns its lanes with parked messages, which are held, and the subscriptions whose receivers answered 410."""
    known = job.known
    if not _is_repeated():
        return known, frozenset(), frozenset()
    arguments = job.settings.kafka, job.number, job.outcomes, OUTCOMES_TIMEOUT_S
    # The deliveries of an earlier run keep their places, and the last attempt may have parked under its numbers.
    earlier = {number for numbers in known.numbers.values() for _, number in numbers}
    parked = parked_in_batch(*arguments, earlier)
    settled = settled_in_batch(*arguments)
    found = RecoveredDeliveries.of(known.settled | settled.deliveries, parked, job.number)
    return (
        known._replace(settled=found.settled, unwritten=found.unwritten | known.unwritten),
        frozenset(name for name, _, _ in parked),
        settled.gone,
    )
