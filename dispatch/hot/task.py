"""The task of a partition: the work on rows of the `notifications` log, in both modes.

Per notification: match as of its acceptance, apply minimum intervals, queue in the lanes of the subscriptions; push
lane by lane, and write each outcome. A delivery that would have to wait (for a degraded endpoint, behind a parked
message, for a paused subscription) is parked without a push. Order is promised per subscription and topic, and a topic
is in one partition: a task holds a lane as soon as it has parked a delivery of it.

Rows are those of a round in the batch mode, without end in real time, a list in tests. The modes differ in the routing
view, the connection with the driver, and the limits for notifications in memory.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from pyspark.core.broadcast import Broadcast

from arborcast.core import liveness
from arborcast.core.eventlog.damaged import unless_damaged
from arborcast.dispatch.hot.batch_outcomes import BatchOutcomes, waits
from arborcast.dispatch.hot.hold_buffer import HoldBuffer
from arborcast.dispatch.hot.intake import SICK, Exclusions, Intake
from arborcast.dispatch.hot.intervals import Intervals, Passed
from arborcast.dispatch.hot.lanes import Lanes
from arborcast.dispatch.hot.pump import PumpRun, SlowLanes
from arborcast.dispatch.hot.recovered import NOTHING, RecoveredDeliveries
from arborcast.dispatch.hot.waiting import Received
from arborcast.dispatch.hot.worker import Worker
from arborcast.dispatch.logs.attempts import WRITE_S
from arborcast.dispatch.matching.filters import Allowance, FilterEvaluator
from arborcast.dispatch.settings import JobSettings
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.notifications import UNSTAMPED, Notification
from arborcast.topic_model.routing import Found

# Limits of notifications for many subscriptions with more deliveries left than `_MOST_LEFT`: others pass them. A single
# one may have any number left.
_MOST_FAN_OUTS = 16
_MOST_LEFT = 200_000

# Smaller notifications are not counted in bytes: two thousand of them have some MB.
_SMALL = 4_096

# Evaluations are written after this many notifications at the latest.
_MATCHED_AT_ONCE = 500

# Interval of heartbeats of an idle task.
IDLE_S = 1.0

# Poll interval for events without a wake-up.
POLL_S = 0.02


@dataclass(frozen=True, kw_only=True)
class TaskJob:
    """The parameters of a task in both modes; pickled into every task, so they are small. `number` is that of the batch
    or run. `recovered` are deliveries of earlier runs, None without one; `passed` is the state of minimum intervals.
    `gauge_file` is the file of the in-flight gauge, empty for none."""

    settings: JobSettings
    number: int
    recovered: Broadcast[RecoveredDeliveries] | None = None
    passed: Passed = field(default_factory=dict)
    gauge_file: str = ""

    @property
    def known(self) -> RecoveredDeliveries:
        """The recovered deliveries, in a worker."""
        return NOTHING if self.recovered is None else self.recovered.value


class TaskRows(Protocol):
    """Value, partition and offset of each notification. `last_offset` is that of the last row read, -1 before the
    first; `error` is the reason of an early end."""

    last_offset: int
    error: BaseException | None

    @property
    def over(self) -> bool:
        """Whether no more rows follow."""

    def first(self) -> tuple[bytes, int, int] | None:
        """The next row, without removing it."""

    def drop_first(self, deliveries: int = 0) -> None:
        """Take the next row, which has this number of deliveries."""


Finds = Callable[[Notification, int, int], Found | None]
"""The subscriptions of a notification at an offset; None until the routing view has reached its position. The last
argument is the offset of the last row read."""


class DriverLink:
    """The connection of a running task with the driver. Batches have none: a round starts with all updates, and reports
    at its end."""

    stop = False
    """Whether the task must take no more notifications, and settle the others."""

    @property
    def complete(self) -> bool:
        """Whether notifications may be matched."""
        return True

    @property
    def pending(self) -> bool:
        """Whether a report waits for the logs."""
        return False

    def apply(self, task: PartitionTask) -> None:
        """Apply the updates that have arrived."""

    def check(self) -> None:
        """Raises the error that ended the updates."""

    def due_s(self, task: PartitionTask, now: float) -> float:
        """Seconds until the next report."""
        return IDLE_S

    def report(self, task: PartitionTask, now: float) -> None:
        """Write a report if one is due."""

    def end(self, task: PartitionTask) -> None:
        """Called when all taken notifications are settled and written."""


class TaskInput:
    """The notifications that a task has taken. With `most` messages or `most_bytes` waiting it pauses."""

    def __init__(self, at_once: int = sys.maxsize, most: int = sys.maxsize, most_bytes: int = sys.maxsize) -> None:
        """Up to `at_once` notifications are matched before the sockets are served again."""
        self.at_once = at_once
        self._most = most
        self._most_bytes = most_bytes
        self.partition = -1
        self.next = -1
        """The offset behind the last one."""
        self.count = 0
        self._large: deque[tuple[int, int]] = deque()  # offsets and sizes, from the oldest waiting one on
        self._large_bytes = 0

    def add(self, offset: int, size: int) -> None:
        self.next = offset + 1
        self.count += 1
        if size > _SMALL:
            self._large.append((offset, size))
            self._large_bytes += size

    def settled(self, position: int) -> None:
        """Set the offset before which everything is settled."""
        while self._large and self._large[0][0] < position:
            self._large_bytes -= self._large.popleft()[1]

    def is_full(self, lanes: Lanes) -> bool:
        """Whether matching pauses: the lanes are full, in number or in bytes, or too many notifications for many
        subscriptions have deliveries that have not joined their lanes."""
        later = lanes.fan_outs
        most = _MOST_FAN_OUTS if later.size < _MOST_LEFT else 2
        fan_outs = later.size >= self._most and later.notifications >= most
        return lanes.size >= self._most or self._large_bytes >= self._most_bytes or fan_outs


class PartitionTask:
    """One task. Used by one thread."""

    def __init__(
        self,
        worker: Worker,
        job: TaskJob,
        number: int,
        known: RecoveredDeliveries,
        exclusions: Exclusions,
        finds: Finds,
        parked_as: Callable[[int, int], int | None],
        *,
        control: int = UNSTAMPED,
        ends: Callable[[], bool] = lambda: False,
        link: DriverLink | None = None,
        taken: TaskInput | None = None,
        buffered: int = 0,
        slow: SlowLanes | None = None,
    ) -> None:
        """`number` is that of the task. `parked_as` returns the number under which a notification at a partition and
        offset is parked, None for that of the batch. `control` is the position in the control log. `ends` returns
        whether the job stops while the taken notifications are settled. Up to `buffered` messages may wait for held
        lanes; `slow` are the lanes for which a task without end does not wait."""
        settings, journal = job.settings, worker.journal
        push = settings.push
        self.worker = worker
        self.taken = taken or TaskInput()
        self._ends, self._link = ends, link or DriverLink()
        self._finds, self._parked_as, self._job = finds, parked_as, job
        self._allowance = Allowance(push.conditions_ms, push.owner_conditions_ms)
        lanes = Lanes(push)
        outcomes = BatchOutcomes(journal, push, settings.retry, exclusions.watched)
        self.intake = Intake(
            journal,
            lanes,
            outcomes,
            self._evaluator(exclusions.unjudged),
            exclusions,
            journal.parked.held,
            known,
            Intervals(job.passed),
            rules=settings.topics,
            control=control,
            buffer=HoldBuffer(buffered),
            clock=time.monotonic,
        )
        self.lanes = PumpRun(lanes, outcomes, self.intake.fill, worker.gauge.of_task(number), slow)
        journal.begin(job.number)
        self._matched_at = 0.0
        self._check_at = 0.0  # while it settles
        self._release_at = 0.0
        self.stopped = False
        """Whether the task has ended after the driver's request to stop."""
        self.left: int | None = None
        """The lowest offset with deliveries that were left to the next run; None without any."""

    def run(self, rows: TaskRows) -> None:
        """Run until all rows are settled and written. Raises InfrastructureError if outcomes cannot be written,
        RecordVersionError for records of a newer version; failures of receivers never raise."""
        while True:
            liveness.beat()
            idle_s = self.step(rows)
            if rows.over:
                break
            self.worker.transport.drive(idle_s)
        if not self.stopped:
            if rows.error is not None:
                raise rows.error
            self._settle()

    def step(self, rows: TaskRows) -> float:
        """One turn; returns the seconds until the next one, unless an event arrives."""
        self._link.apply(self)
        if self.intake.buffer.examined and (now := time.monotonic()) >= self._release_at:
            self._release_at = now + POLL_S
            self._release_buffered(now)
        if self._link.stop:
            if not self.stopped:
                self.stopped = True
                self._settle()
            while rows.first() is not None:
                rows.drop_first()
            return IDLE_S
        complete = self._link.complete
        waits = complete and not self._take(rows)
        now = self.worker.pump.turn(self.lanes)
        self._report(now)
        if rows.error is not None:
            raise rows.error
        self._link.check()
        lanes = self.intake.lanes
        if self._link.pending or self.intake.buffer.size or lanes.fan_outs.size:
            return POLL_S
        if complete and rows.first() is not None and not self.taken.is_full(lanes):
            return POLL_S if waits else 0.0
        return max(0.0, min(self._link.due_s(self, now), self.worker.journal.due_s(), IDLE_S))

    def exclude(self, exclusions: Exclusions) -> None:
        """Stop pushes to these lanes, endpoints and subscriptions."""
        before, self.intake.exclusions = self.intake.exclusions, exclusions
        self._release_at = 0.0  # lanes may be free
        lanes, outcomes = self.intake.lanes, self.intake.outcomes
        if lanes.size and (exclusions.degraded is not before.degraded or exclusions.on_trial is not before.on_trial):
            for subscription, _ in list(lanes.waiting()):
                if exclusions.is_sick(subscription) and not before.is_sick(subscription):
                    self.lanes.defer(subscription, waits(SICK))
        if exclusions.on_trial is not before.on_trial:
            outcomes.resume(exclusions.on_trial - before.on_trial)
        outcomes.watched = exclusions.watched
        if exclusions.unjudged != before.unjudged:
            self.intake.evaluator = self._evaluator(exclusions.unjudged)

    def write_evaluations(self) -> None:
        """Write evaluations, many in one record: a record for each would cost more than its push."""
        self._matched_at = time.monotonic()
        if self.intake.matched:
            self.intake.write_evaluations()

    def mark(self) -> int:
        """The offset before which all is settled once the journal has passed the mark set here."""
        unsettled = self.intake.buffer.oldest(), self.intake.lanes.oldest(), self.left
        position = min([each for each in unsettled if each is not None], default=self.taken.next)
        self.taken.settled(position)
        self.write_evaluations()
        self.worker.journal.mark()
        return position

    def _evaluator(self, unjudged: frozenset[str]) -> FilterEvaluator:
        return FilterEvaluator(self.worker.conditions, self._allowance, unjudged)

    def _release_buffered(self, now: float) -> None:
        """Queue deferred notifications again, or park them."""
        for subscription, messages in self.intake.buffer.release(self.intake.held, now):
            if why := self.intake.exclusions.reason(subscription, self.intake.held):
                self.intake.outcomes.write_unpushed(subscription, messages, waits(why))
            else:
                for received in messages:
                    self.intake.lanes.add(received, subscription)

    def _take(self, rows: TaskRows) -> bool:
        """Match the rows that have arrived; False if the first of them waits for the view."""
        taken, intake = self.taken, self.intake
        for _ in range(taken.at_once):
            row = rows.first()
            if row is None or taken.is_full(intake.lanes):
                break
            value, partition, offset = row
            if taken.next < 0:
                taken.partition, taken.next = partition, offset
            deliveries, notification = 0, read_notification(value, partition, offset)
            if notification is not None:
                found = self._finds(notification, offset, rows.last_offset)
                if found is None:
                    return False
                number = self._parked_as(partition, offset)
                deliveries = intake.take(Received(notification, partition, offset, self._job.number, number), found)
                if len(intake.matched[partition]) >= _MATCHED_AT_ONCE:
                    self.write_evaluations()
            taken.add(offset, len(value))
            rows.drop_first(deliveries)
        return True

    def _report(self, now: float) -> None:
        """Write evaluations and report progress, when due."""
        if self.intake.matched and now - self._matched_at >= WRITE_S:
            self.write_evaluations()
        self._link.report(self, now)

    def _settle(self) -> None:
        """Settle all taken notifications, and report it."""
        pump = self.worker.pump
        self._release_buffered(math.inf)
        self._leave()
        pump.run(self.lanes, self._between)
        while self.intake.buffer.size:  # messages for many that joined held lanes meanwhile
            self._release_buffered(math.inf)
            pump.run(self.lanes, self._between)
        if self.stopped:  # this process ends: a late answer saves a second push
            until = time.monotonic() + self._job.settings.retry.batch_wait_s
            while pump.unanswered and time.monotonic() < until:
                liveness.beat()
                self.worker.transport.drive(POLL_S)
                self.worker.journal.write_due()
        self.write_evaluations()
        self.worker.journal.catch_up()
        self._link.end(self)

    def _between(self, now: float) -> None:
        if now < self._check_at:
            return
        self._check_at = now + POLL_S
        liveness.beat()
        self._link.check()
        self._leave()
        self._report(now)

    def _leave(self) -> None:
        """During a stop, leave deliveries that have not joined their lanes to the next run: there may be a million."""
        self.stopped = self.stopped or self._ends()
        if self.stopped and self.intake.lanes.fan_outs.size:
            self.left = self.intake.lanes.leave_fan_outs()


def read_notification(value: bytes, partition: int, offset: int) -> Notification | None:
    """The notification in a record; None for a damaged one. Raises RecordVersionError."""
    return unless_damaged("notifications", (partition, offset), notifications.decode, value)
