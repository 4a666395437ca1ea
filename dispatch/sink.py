"""The sink: what runs in Spark's Python workers, once per partition of every batch.

Per notification: match, filter, queue in the lanes of those who want it; then push lane by lane until every lane is
empty, and return when the outcomes are in the `attempts` log. So a batch that Spark counts as done is done.

What is costly to make (connections, the opened view, prepared envelopes) is kept in the module, because Spark reuses
its worker processes. It is a cache only: Spark may end an idle worker at any time, and a killed one is replaced.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from dispatch.attempts_log import AttemptsLog
from dispatch.envelope import Envelope
from dispatch.filters import Conditions, Subject
from dispatch.lanes import LaneLimits, Lanes
from dispatch.pull_points import PullDelivery
from dispatch.pump import Pump
from dispatch.room import Bounds
from dispatch.settings import DispatchSettings, PushSettings
from dispatch.transport import make_transport
from dispatch.view import SharedView
from topic_model import notifications
from topic_model.errors import InfrastructureError, RecordVersionError
from topic_model.outbound import AddressPolicy
from topic_model.settings import KafkaSettings
from topic_model.subscriptions import Subscription

logger = logging.getLogger(__name__)

# Prepared envelopes kept per worker: about 1.5 kB each.
_MAX_ENVELOPES = 20_000


class SourceRow(Protocol):
    """A row of the `notifications` log as the query hands it on."""

    value: bytearray
    partition: int
    offset: int


@dataclass(frozen=True)
class SinkJob:
    """What a partition needs to know; pickled into every task, so it is small."""

    kafka: KafkaSettings
    dispatch: DispatchSettings
    push: PushSettings
    outbound: AddressPolicy
    view: SharedView
    batch: int


def push_partition(job: SinkJob, rows: Iterable[SourceRow]) -> None:
    """Push the notifications of one partition to everybody who wants them.

    Raises InfrastructureError when the outcomes cannot be written, RecordVersionError for records of a newer Arborcast;
    the batch is repeated then. What receivers do never raises. `rows` is always exhausted: Spark discards a worker that
    leaves rows unread, and with it all that is kept here.
    """
    worker = _worker_for(job)
    try:
        lanes = worker.fill(job, rows)
        worker.pump.run(lanes, job.batch)
        worker.pulls.settle(job.dispatch.outcomes_timeout_s, job.batch, worker.log.add)
        worker.log.settle(job.dispatch.outcomes_timeout_s)
    except BaseException:
        # Half-done pushes must not mix with those of the next task.
        _forget()
        raise
    worker.settled()


class _Worker:
    """What one worker process keeps between partitions."""

    def __init__(self, job: SinkJob) -> None:
        self._settings = (job.kafka, job.push, job.outbound)
        self._envelopes: dict[str, tuple[Subscription, Envelope]] = {}
        self._frozen = False
        self._conditions = Conditions()
        self.transport = make_transport(job.push, job.outbound)
        self.log = AttemptsLog(job.kafka)
        self.log.connect()
        self.pulls = PullDelivery(job.kafka)
        self.pump = Pump(self.transport, self._envelope_of, self.log.add, job.push.max_in_flight)

    def serves(self, job: SinkJob) -> bool:
        """Whether this was made for the same settings: only in tests does one session see several."""
        return self._settings == (job.kafka, job.push, job.outbound)

    def fill(self, job: SinkJob, rows: Iterable[SourceRow]) -> Lanes:
        """Match every notification. A subscription whose time is over gets nothing more, and no row says so: that it
        ended is in the control log."""
        push = job.push
        lanes = Lanes(
            LaneLimits(push.max_notify_messages, push.max_notify_bytes),
            Bounds(push.max_in_flight_per_endpoint, push.max_in_flight_per_host),
        )
        view = job.view.open()
        now_ms = int(time.time() * 1000)
        for row in rows:
            try:
                notification = notifications.decode(bytes(row.value))
            except RecordVersionError:
                raise
            except InfrastructureError as error:
                # It will never be readable; stopping here would stop everybody for ever.
                logger.error("skipped offset %d of partition %d: %s", row.offset, row.partition, error)
                continue
            subject: Subject | None = None
            for subscription in view.match(notification.topic):
                if subscription.expired(now_ms) or (notification.only and notification.only != subscription.id):
                    continue
                if subscription.content or subscription.producer:
                    subject = subject or Subject(self._conditions, notification)
                    if not subject.passes(subscription):
                        continue
                if subscription.pull_point:
                    self.pulls.add(notification, subscription)
                else:
                    lanes.add(notification, subscription)
        return lanes

    def settled(self) -> None:
        """After the first partition all that is loaded stays: the worker's collector, which Spark runs after every
        task, need not look at it again (10-38 ms per task)."""
        if not self._frozen:
            gc.collect()
            gc.freeze()
            self._frozen = True

    def close(self) -> None:
        self.transport.close()
        self.log.close()
        self.pulls.close()

    def _envelope_of(self, subscription: Subscription) -> Envelope:
        kept = self._envelopes.get(subscription.id)
        if kept is not None and (kept[0] is subscription or kept[0] == subscription):
            return kept[1]
        if len(self._envelopes) >= _MAX_ENVELOPES:
            self._envelopes.clear()
        envelope = Envelope(subscription)
        self._envelopes[subscription.id] = (subscription, envelope)
        return envelope


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
