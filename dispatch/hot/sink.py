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
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from pyspark import TaskContext
from pyspark.accumulators import Accumulator
from pyspark.core.broadcast import Broadcast

from core import liveness
from core.errors import InfrastructureError, RecordVersionError
from core.recent import Recent
from dispatch.delivery.capacity import Limits
from dispatch.delivery.credentials import Vault
from dispatch.delivery.envelope import Envelope
from dispatch.delivery.outcomes import failed
from dispatch.delivery.pushes import make_push_spans
from dispatch.delivery.transport import make_transport
from dispatch.delivery.verdict import Verdict
from dispatch.hot.batch_outcomes import BatchOutcomes, PutOff, cancelled, waits
from dispatch.hot.lanes import LaneLimits, Lanes, Received
from dispatch.hot.pump import Pump
from dispatch.hot.sink_journal import Settled, SinkJournal, recall
from dispatch.job import heartbeat
from dispatch.logs.attempts import Matched
from dispatch.matching.filters import TOO_MUCH, Allowance, Conditions, Judge
from dispatch.matching.view import SharedView
from dispatch.monitoring.under_way import Shown
from dispatch.redelivery.held_lanes import PartitionReport
from dispatch.settings import JobSettings, PushSettings, RetrySettings
from topic_model.records import notifications
from topic_model.subscriptions import Subscription

logger = logging.getLogger(__name__)

# While a batch is matched, what becomes of it is written down after so many notifications.
_MATCHED_AT_ONCE = 500

# Bytes of prepared envelopes kept per worker, twice: about 1.5 kB each, with their subscriptions as much again.
_ENVELOPES = 32 * 1024 * 1024


class SourceRow(Protocol):
    """A row of the `notifications` log as the query hands it on."""

    value: bytearray
    partition: int
    offset: int


@dataclass(frozen=True)
class Diversions:
    """What a batch does not push, but parks: for `held` subscriptions, which have something parked that must not be
    overtaken, and for `degraded` endpoints. Of `watched` endpoints it reports successes. The conditions of those that
    are `unjudged` are not asked: what they might want is parked as it is."""

    held: frozenset[str] = frozenset()
    degraded: frozenset[str] = frozenset()
    watched: frozenset[str] = frozenset()
    unjudged: frozenset[str] = frozenset()

    def reason(self, subscription: Subscription) -> str:
        """Why a message for this subscription is parked rather than pushed; empty when it is pushed."""
        if subscription.paused:
            return "the subscription is paused"
        if subscription.policy.strict:
            return "strict order: each message waits for the one before it"
        if subscription.id in self.held:
            return "earlier messages are parked, or the subscription is suspended"
        if subscription.consumer.address in self.degraded:
            return "its endpoint is sick"
        return ""


@dataclass(frozen=True)
class SinkJob:
    """What a partition needs to know; pickled into every task, so it is small.

    `settled` is what an earlier run of the same batch came to; None when there was none. `begun_ms` is when this run
    began. `under_way` is the file in which it is shown how many pushes are; empty for none. Of each partition it takes
    what lies behind the offsets `done`, until that comes to `most` deliveries.
    """

    settings: JobSettings
    view: SharedView
    batch: int
    begun_ms: int
    diversions: Diversions = Diversions()
    settled: Broadcast[Settled] | None = None
    under_way: str = ""
    done: Mapping[int, int] = field(default_factory=dict)
    most: int = sys.maxsize


def push_partition(job: SinkJob, reports: Accumulator[list[PartitionReport]], rows: Iterable[SourceRow]) -> None:
    """Push the notifications of one partition to everybody who wants them, and report.

    Raises InfrastructureError when the outcomes cannot be written, RecordVersionError for records of a newer Arborcast;
    the batch is repeated then. What receivers do never raises. `rows` is always exhausted: Spark discards a worker that
    leaves rows unread, and with it all that is kept here.
    """
    with heartbeat.task():
        _push_partition(job, reports, rows)


def _push_partition(job: SinkJob, reports: Accumulator[list[PartitionReport]], rows: Iterable[SourceRow]) -> None:
    worker = _worker_for(job)
    try:
        push, retry = job.settings.push, job.settings.retry
        settlement = BatchOutcomes(worker.journal, push, retry, job.batch, job.diversions.watched)
        lanes = worker.fill(job, rows, settlement)
        worker.pump.run(lanes, settlement, worker.shown.teller(_task()))
        settlement.report.reach = worker.journal.settle()
        settlement.report.repeated = _is_repeated()
    except BaseException:
        # Half-done pushes must not mix with those of the next task.
        _forget()
        raise
    reports.add([settlement.report])
    worker.settled()


class _Worker:
    """What one worker process keeps between partitions."""

    def __init__(self, job: SinkJob) -> None:
        self._settings = _kept_settings(job)
        self._vault = Vault(job.settings.secrets)
        self._envelopes: Recent[str, tuple[Subscription, Envelope]] = Recent(_ENVELOPES)
        self._frozen = False
        self._conditions = Conditions()
        self.transport = make_transport(_hurried(job.settings.push, job.settings.retry), job.settings.outbound)
        self.journal = SinkJournal(job.settings.kafka, job.settings.dispatch.outcomes_timeout_s)
        self.spans = make_push_spans(job.settings.tracing)
        self.shown = Shown(job.under_way)
        self.pump = Pump(
            self.transport,
            self._envelope_of,
            job.settings.push.max_in_flight,
            job.settings.retry.batch_wait_s,
            spans=self.spans,
        )

    def serves(self, job: SinkJob) -> bool:
        """Whether this was made for the same settings: only in tests does one session see several."""
        return self._settings == _kept_settings(job)

    def fill(self, job: SinkJob, rows: Iterable[SourceRow], settlement: BatchOutcomes) -> Lanes:
        """Match the notifications of this round with those whom they belong to. Who has ended since one was accepted
        gets nothing any more, and a row says so."""
        push = job.settings.push
        lanes = Lanes(
            LaneLimits(push.max_notify_messages, push.max_notify_bytes),
            Limits(push.max_in_flight_per_endpoint, push.max_in_flight_per_host),
        )
        recipients = job.view.open()
        settled = _settled_before(job)
        matched: defaultdict[int, list[Matched]] = defaultdict(list)
        self.journal.begin(job.batch)
        judge = Judge(
            self._conditions, Allowance(push.conditions_ms, push.owner_conditions_ms), job.diversions.unjudged
        )
        report, taken = settlement.report, 0
        for row in rows:
            liveness.beat()
            if row.offset <= job.done.get(row.partition, -1):
                continue
            if taken >= job.most:
                report.rest = True
                continue
            # Right only while each partition of the log is one task: the source sets no minPartitions.
            report.done[row.partition] = row.offset
            try:
                notification = notifications.decode(bytes(row.value))
            except RecordVersionError:
                raise
            except InfrastructureError as error:
                # It will never be readable; stopping here would stop everybody for ever.
                logger.error("skipped offset %d of partition %d: %s", row.offset, row.partition, error)
                continue
            found = recipients.of(notification)
            ended = {subscription.id for subscription in found.ended}
            wanted = judge.wanted(notification, [*found.there, *found.ended])
            matched[row.partition].append(
                Matched(notification.id, notification.topic, notification.accepted_ms, row.offset, len(wanted))
            )
            taken += max(1, len(wanted))
            received = Received(notification, row.partition, row.offset)
            unjudged: Received | None = None
            for subscription, asked in wanted:
                if settled and (subscription.id, notification.id) in settled:
                    continue
                if subscription.id in ended:
                    settlement.put_off(subscription, (received,), cancelled("it ended before this was matched"))
                elif asked:
                    self._hand_over(job.diversions, lanes, settlement, subscription, received)
                else:
                    if unjudged is None:
                        kept = msgspec.structs.replace(notification, unjudged=True)
                        unjudged = Received(kept, row.partition, row.offset)
                    self._keep_unjudged(settlement, subscription, unjudged)
            if len(matched[row.partition]) == _MATCHED_AT_ONCE:
                self._tell_matched(job.view.control, matched, settlement)
        report.costly |= judge.costly
        self._tell_matched(job.view.control, matched, settlement)
        return lanes

    def _tell_matched(self, control: int, matched: dict[int, list[Matched]], settlement: BatchOutcomes) -> None:
        """Whom notifications are for is written before what became of it."""
        for partition, counts in matched.items():
            self.journal.matched(partition, control, counts)
            settlement.report.notifications += len(counts)
            settlement.report.deliveries += sum(each.subscriptions for each in counts)
        matched.clear()
        settlement.write_due()

    def _keep_unjudged(self, settlement: BatchOutcomes, subscription: Subscription, received: Received) -> None:
        """Its conditions were not evaluated: it waits until the subscription is resumed."""
        if subscription.pull_point:
            # A pull point holds what may be fetched now, and nothing that is still to be judged.
            settlement.put_off(subscription, (received,), PutOff(Verdict("cancelled"), failed("skipped", TOO_MUCH)))
        elif not settlement.expired(subscription, received):
            settlement.put_off(subscription, (received,), waits(TOO_MUCH))

    def _hand_over(
        self,
        diversions: Diversions,
        lanes: Lanes,
        settlement: BatchOutcomes,
        subscription: Subscription,
        received: Received,
    ) -> None:
        if subscription.pull_point:
            self.journal.store(subscription, received.notification)
        elif settlement.expired(subscription, received):
            return
        elif why := diversions.reason(subscription):
            settlement.put_off(subscription, (received,), waits(why))
        else:
            lanes.add(received, subscription)

    def settled(self) -> None:
        """After the first partition all that is loaded stays: the worker's collector, which Spark runs after every
        task, need not look at it again (10-38 ms per task)."""
        if not self._frozen:
            gc.collect()
            gc.freeze()
            self._frozen = True

    def close(self) -> None:
        self.transport.close()
        self.journal.close()
        if self.spans is not None:
            self.spans.close()

    def _envelope_of(self, subscription: Subscription) -> Envelope:
        kept = self._envelopes.get(subscription.id)
        if kept is not None and (kept[0] is subscription or kept[0] == subscription):
            return kept[1]
        envelope = Envelope(subscription, self._vault)
        self._envelopes.put(subscription.id, (subscription, envelope), 2 * envelope.size)
        return envelope


def _kept_settings(job: SinkJob) -> tuple[object, ...]:
    return job.settings, job.under_way


def _task() -> int:
    """The number of the task among those of its batch."""
    task = TaskContext.get()
    return task.partitionId() if task is not None else 0


def _is_repeated() -> bool:
    """Whether Spark runs a task again here whose worker has died."""
    task = TaskContext.get()
    return task is not None and task.attemptNumber() > 0


def _settled_before(job: SinkJob) -> Settled:
    """What is known already of the deliveries of this batch: from an earlier run of it, or of this task."""
    settled: Settled = job.settled.value if job.settled is not None else frozenset()
    if _is_repeated():
        settled |= recall(job.settings.kafka, job.batch, job.begun_ms, job.settings.dispatch.outcomes_timeout_s)
    return settled


def _hurried(push: PushSettings, retry: RetrySettings) -> PushSettings:
    """A batch waits for no receiver longer than the hot budget."""
    return dataclasses.replace(
        push,
        connect_timeout_s=min(push.connect_timeout_s, retry.batch_wait_s),
        total_timeout_s=min(push.total_timeout_s, retry.batch_wait_s),
    )


_worker: _Worker | None = None


def _worker_for(job: SinkJob) -> _Worker:
    global _worker
    if _worker is not None and not _worker.serves(job):
        _forget()
    if _worker is None:
        _worker = _Worker(job)
    return _worker


def _forget() -> None:
    global _worker
    worker, _worker = _worker, None
    if worker is not None:
        worker.close()
