"""The sink: what runs in Spark's Python workers, once per partition of every batch.

Per notification: match, filter, queue in the lanes of those who want it; then push lane by lane until every lane is
empty, and return when the outcomes are in the `attempts` log and what could not be delivered is in the `parked` log. So
a batch that Spark counts as done is done. What would have to wait (for a degraded endpoint, behind something parked,
for a paused subscription) is parked without being tried.

What is costly to make (connections, the opened view, prepared envelopes) is kept in the module, because Spark reuses
its worker processes. It is a cache only: Spark may end an idle worker at any time, and a killed one is replaced.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyspark import TaskContext
from pyspark.accumulators import Accumulator
from pyspark.core.broadcast import Broadcast

from arborcast.core import liveness
from arborcast.core.errors import ArborcastError, InfrastructureError, RecordVersionError
from arborcast.core.recent import Recent
from arborcast.dispatch.delivery.capacity import Limits
from arborcast.dispatch.delivery.credentials import Vault
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.pushes import make_push_spans
from arborcast.dispatch.delivery.transport import make_transport
from arborcast.dispatch.hot.batch_outcomes import BatchOutcomes
from arborcast.dispatch.hot.intake import Diversions, Intake
from arborcast.dispatch.hot.intervals import Intervals, Passed
from arborcast.dispatch.hot.lanes import LaneLimits, Lanes
from arborcast.dispatch.hot.pump import Pump
from arborcast.dispatch.hot.recovered import RecoveredDeliveries, earlier, parked_by, recall
from arborcast.dispatch.hot.sink_journal import SinkJournal
from arborcast.dispatch.hot.waiting import Received
from arborcast.dispatch.job import heartbeat
from arborcast.dispatch.matching.filters import Allowance, Conditions, Judge
from arborcast.dispatch.matching.view import SharedView
from arborcast.dispatch.monitoring.under_way import Shown
from arborcast.dispatch.redelivery.partition_reports import PartitionReport
from arborcast.dispatch.settings import JobSettings, PushSettings, RetrySettings
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import Subscription

logger = logging.getLogger(__name__)

# While a batch is matched, what becomes of it is written down after so many notifications.
_MATCHED_AT_ONCE = 500

# Bytes of the notifications of a round. Many, since each round reads all rows of the batch again.
_MOST_BYTES = 256 * 1024 * 1024

# Bytes of prepared envelopes kept per worker, twice: about 1.5 kB each, with their subscriptions as much again.
_ENVELOPES = 32 * 1024 * 1024

# How long a thread that waits for answers waits for the next one.
_REST_S = 1.0

# The share of the time that a lane waits for a push in which its connection has to stand.
_CONNECTED_BY = 0.9


# A row of the `notifications` log as the query hands it on: value, partition, offset. Spark's Row is a tuple; to ask it
# for a field by name takes a microsecond.
SourceRow = tuple[bytearray, int, int]


@dataclass(frozen=True)
class SinkJob:
    """What a partition needs to know; pickled into every task, so it is small.

    `earlier` is what an earlier run came to; None when there was none. `begun_ms` is when this run
    began. `under_way` is the file in which it is shown how many pushes are; empty for none. Of each partition it takes
    what lies behind the offsets `done`, until that comes to `most` deliveries; `passed` is what counts there for
    minimum intervals. `held` are the lanes that the driver holds.
    """

    settings: JobSettings
    view: SharedView
    batch: int
    begun_ms: int
    diversions: Diversions = field(default_factory=Diversions)
    earlier: Broadcast[RecoveredDeliveries] | None = None
    under_way: str = ""
    done: Mapping[int, int] = field(default_factory=dict)
    most: int = sys.maxsize
    passed: Passed = field(default_factory=dict)
    held: frozenset[str] = frozenset()


def push_partition(job: SinkJob, reports: Accumulator[list[PartitionReport]], rows: Iterable[SourceRow]) -> None:
    """Push the notifications of one partition to everybody who wants them, and report.

    Raises InfrastructureError when the outcomes cannot be written, RecordVersionError for records of a newer Arborcast;
    the batch is repeated then. What receivers do never raises. `rows` is always exhausted: Spark discards a worker that
    leaves rows unread, and with it all that is kept here.
    """
    with heartbeat.task():
        _push_partition(job, reports, rows)


def _push_partition(job: SinkJob, reports: Accumulator[list[PartitionReport]], rows: Iterable[SourceRow]) -> None:
    worker = worker_for(job.settings, job.under_way)
    try:
        known, parked = _before(job)
        held = worker.journal.parked.held
        held.begin_batch(job.held | parked)
        job = dataclasses.replace(job, diversions=dataclasses.replace(job.diversions, held=held))
        outcomes = BatchOutcomes(worker.journal, job.settings.push, job.settings.retry, job.diversions.watched)
        intake = worker.fill(job, rows, outcomes, known)
        worker.pump.run(intake.lanes, outcomes, worker.shown.teller(_task()), intake.fill)
        outcomes.report.reach = worker.journal.settle()
        outcomes.report.repeated = _is_repeated()
    except BaseException:
        forget_worker()
        raise
    reports.add([outcomes.report])
    worker.settled()
    worker.rest()


def read_notification(value: bytes, partition: int, offset: int) -> Notification | None:
    """The notification in a record; None, with a line in the log, for one that can never be read: to stop there would
    stop everybody for ever. Raises RecordVersionError for a record of a newer Arborcast."""
    try:
        return notifications.decode(value)
    except RecordVersionError:
        raise
    except InfrastructureError as error:
        logger.error("skipped offset %d of partition %d: %s", offset, partition, error)
        return None


def make_lanes(push: PushSettings) -> Lanes:
    """Empty lanes with the limits of the settings."""
    return Lanes(
        LaneLimits(push.max_notify_messages, push.max_notify_bytes),
        Limits(push.max_in_flight_per_endpoint, push.max_in_flight_per_host),
    )


class Worker:
    """What one worker process keeps between tasks."""

    def __init__(self, settings: JobSettings, under_way: str) -> None:
        self.made_for = (settings, under_way)
        self._vault = Vault(settings.secrets)
        self._callback_s = settings.push.callback_s
        self._envelopes: Recent[str, tuple[Subscription, Envelope]] = Recent(_ENVELOPES)
        self._frozen = False
        self._resting: threading.Thread | None = None
        self.conditions = Conditions()
        self.transport = make_transport(_hurried(settings.push, settings.retry), settings.outbound)
        self.journal = SinkJournal(settings.kafka, settings.dispatch.outcomes_timeout_s)
        self.spans = make_push_spans(settings.tracing)
        self.shown = Shown(under_way)
        self.pump = Pump(
            self.transport,
            self.envelope_of,
            settings.push.max_in_flight,
            settings.retry.batch_wait_s,
            spans=self.spans,
            timeout_s=settings.push.total_timeout_s,
        )

    def fill(
        self, job: SinkJob, rows: Iterable[SourceRow], outcomes: BatchOutcomes, known: RecoveredDeliveries
    ) -> Intake:
        """Match the notifications of this round with those whom they belong to; their lanes are the intake's."""
        push = job.settings.push
        lanes = make_lanes(push)
        recipients = job.view.open()
        self.journal.begin(job.batch)
        allowance = Allowance(push.conditions_ms, push.owner_conditions_ms)
        judge = Judge(self.conditions, allowance, job.diversions.unjudged)
        intervals = Intervals(job.passed)
        intake = Intake(
            *(self.journal, lanes, outcomes, judge, job.diversions, known, intervals),
            rules=job.settings.topics,
            control=job.view.control,
        )
        report, taken, size = outcomes.report, 0, 0
        for value, partition, offset in rows:
            liveness.beat()
            if offset <= job.done.get(partition, -1):
                continue
            if taken >= job.most or size >= _MOST_BYTES:
                report.rest = True
                continue
            # Right only while each partition of the log is one task: the source sets no minPartitions.
            report.done[partition] = offset
            size += len(value)
            notification = read_notification(bytes(value), partition, offset)
            if notification is None:
                continue
            number = known.number(partition, offset)
            received = Received(notification, partition, offset, job.batch, number)
            taken += max(1, intake.take(received, recipients.of(notification)))
            if len(intake.matched[partition]) == _MATCHED_AT_ONCE:
                intake.tell_matched()
        intake.tell_matched()
        report.passed = intervals.passed
        return intake

    def settled(self) -> None:
        """After the first partition all that is loaded stays: the worker's collector, which Spark runs after every
        task, need not look at it again (10-38 ms per task)."""
        if not self._frozen:
            gc.collect()
            gc.freeze()
            self._frozen = True

    def rest(self) -> None:
        """No task is here: pushes without an answer go on in a thread of their own, until `resume`."""
        if self.transport.in_flight:
            self._resting = threading.Thread(target=self._await_answers, name="unanswered", daemon=True)
            self._resting.start()

    def resume(self) -> None:
        """A task begins."""
        resting, self._resting = self._resting, None
        if resting is not None:
            self.transport.wake()
            resting.join()

    def _await_answers(self) -> None:
        try:
            while self._resting is not None and self.transport.in_flight:
                self.transport.rest(_REST_S)
        except ArborcastError as error:
            logger.warning("what receivers have answered is not written down, and they are pushed to again: %s", error)

    def close(self) -> None:
        self.resume()
        self.transport.close()
        self.journal.close()
        if self.spans is not None:
            self.spans.close()

    def envelope_of(self, subscription: Subscription) -> Envelope:
        """What is kept of a subscription's messages, made when it is first pushed to, and when it has changed."""
        kept = self._envelopes.get(subscription.id)
        if kept is not None and (kept[0] is subscription or kept[0] == subscription):
            return kept[1]
        envelope = Envelope(subscription, self._vault, self._callback_s)
        self._envelopes.put(subscription.id, (subscription, envelope), 2 * envelope.size)
        return envelope


def _task() -> int:
    """The number of the task among those of its batch."""
    task = TaskContext.get()
    return task.partitionId() if task is not None else 0


def _is_repeated() -> bool:
    """Whether Spark runs a task again here whose worker has died."""
    task = TaskContext.get()
    return task is not None and task.attemptNumber() > 0


def _before(job: SinkJob) -> tuple[RecoveredDeliveries, frozenset[str]]:
    """What is known already of the deliveries of this batch, from an earlier run, or of this task; and the lanes in
    which the worker before this one has parked something: they were not reported, and must not be overtaken."""
    known: RecoveredDeliveries = job.earlier.value if job.earlier is not None else RecoveredDeliveries()
    if not _is_repeated():
        return known, frozenset()
    asked = job.settings.kafka, job.batch, job.begun_ms, job.settings.dispatch.outcomes_timeout_s
    parked = parked_by(*asked)
    found = earlier(known.settled | recall(*asked), parked, job.batch)
    return (
        found._replace(unwritten=found.unwritten | known.unwritten),
        frozenset(name for name, _, _ in parked),
    )


def _hurried(push: PushSettings, retry: RetrySettings) -> PushSettings:
    """A connection that does not stand when a lane stops waiting is given up: nothing was sent over it."""
    return dataclasses.replace(push, connect_timeout_s=min(push.connect_timeout_s, _CONNECTED_BY * retry.batch_wait_s))


_worker: Worker | None = None


def worker_for(settings: JobSettings, under_way: str) -> Worker:
    """This process' worker. Only in tests does one session see several settings."""
    global _worker
    if _worker is not None and _worker.made_for != (settings, under_way):
        forget_worker()
    if _worker is None:
        _worker = Worker(settings, under_way)
    _worker.resume()
    return _worker


def forget_worker() -> None:
    """Give up what is half done: it must not mix with that of the next task."""
    global _worker
    worker, _worker = _worker, None
    if worker is not None:
        worker.close()
