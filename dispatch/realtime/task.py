"""A task of the real-time mode without its threads and connections (`worker`): a `PartitionTask` without end.

A notification is matched when the routing view has reached the position of the gateway at acceptance. Four times a
second the task writes the position before which all is settled.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from arborcast.core import fence
from arborcast.dispatch.hot.batch_outcomes import waits
from arborcast.dispatch.hot.intake import HELD, Exclusions
from arborcast.dispatch.hot.pump import SlowLanes
from arborcast.dispatch.hot.recovered import RecoveredDeliveries
from arborcast.dispatch.hot.sink_journal import OUTCOMES_TIMEOUT_S
from arborcast.dispatch.hot.task import IDLE_S, DriverLink, PartitionTask, TaskInput, TaskJob
from arborcast.dispatch.hot.worker import Worker
from arborcast.dispatch.logs.held_lanes import HeldLanes
from arborcast.dispatch.matching.bases import SharedBase
from arborcast.dispatch.realtime.messages import ExclusionChange, ProgressLog, UpdateReader, WorkerProgress
from arborcast.dispatch.realtime.view_position import TaskView

# Limit of messages in lanes: above it nothing is matched, and the lag grows.
_MOST_WAITING = 2_000

# Limit in bytes of notifications, from the oldest waiting one on.
_MOST_BYTES = 64 * 1024 * 1024

# Notifications matched before the sockets are served again.
_AT_ONCE = 200

# Interval of reports of progress.
_REPORT_S = 0.25

# After this time the driver excludes endpoints that did not answer; the task allows the others again.
_FORGET_S = 2.0


@dataclass(frozen=True, kw_only=True)
class RealtimeJob(TaskJob):
    """The parameters of a run.

    Its `number` is that of its rows; parked records have a higher one, which grows by one each millisecond since
    `began_s`, by the clock `clock_of`. The recovered deliveries are before the offset `again` of each partition;
    `since` and `topic` are as in `StartState`. `base` is the base of the routing view for a worker on another host,
    which cannot open the driver's files.
    """

    began_s: float
    again: Mapping[int, int] = field(default_factory=dict)
    since: int = -1
    topic: str = ""
    base: SharedBase | None = None


def clock_of(here: bool) -> Callable[[], float]:
    """The clock of a run's numbers: on the driver's host a monotonic one."""
    return fence.clock if here else time.time


def realtime_task(
    job: RealtimeJob,
    worker: Worker,
    number: int,
    updates: UpdateReader,
    progress: ProgressLog,
    control_end: Callable[[], int],
) -> PartitionTask:
    """The task with this number. `control_end` queries the end of the control log."""
    known = job.known
    view = TaskView(control_end, job.base)
    return PartitionTask(
        worker,
        job,
        number,
        known,
        Exclusions(),
        view.of,
        run_numbers(job, known),
        link=LogLink(job, number, updates, progress, view, worker.journal.parked.held),
        taken=TaskInput(_AT_ONCE, _MOST_WAITING, _MOST_BYTES),
        buffered=_MOST_WAITING // 2,
        slow=SlowLanes(job.settings.retry.batch_wait_s),
    )


def run_numbers(job: RealtimeJob, known: RecoveredDeliveries) -> Callable[[int, int], int]:
    """A function that returns the number under which a notification is parked, called when it is taken. The numbers
    grow with time, over all partitions."""
    clock, newest = clock_of(job.base is None), job.number

    def number_of(partition: int, offset: int) -> int:
        nonlocal newest
        number = known.number(partition, offset)
        if number is None:
            newest = number = max(newest, job.number + int((clock() - job.began_s) * 1000))
        return number

    return number_of


class LogLink(DriverLink):
    """The driver's updates from the log `feed`: changes of the routing view and of the exclusions; and the reports in
    the log `progress`: the position before which all is settled, four times a second while it changes."""

    def __init__(
        self,
        job: RealtimeJob,
        number: int,
        updates: UpdateReader,
        progress: ProgressLog,
        view: TaskView,
        held: HeldLanes,
    ) -> None:
        self._job = job
        self._number = number
        self._updates = updates
        self._progress = progress
        self._view = view
        self._held = held
        self._exclusions = Exclusions()  # as of the last message
        self._ready = False
        self._written = -1
        self._marked: int | None = None  # the position to write after the journal's mark
        self._due_at = 0.0
        self._forget_at = 0.0
        self.stop = False

    @property
    def complete(self) -> bool:
        return self._view.complete and self._held.has_read(self._updates.parked)

    @property
    def pending(self) -> bool:
        return self._marked is not None

    def apply(self, task: PartitionTask) -> None:
        messages = self._updates.messages
        if messages:
            task.write_evaluations()  # of the view before the update
        while messages:
            update = messages.popleft()
            if update.base:
                self._held.begin_session()
                self._exclusions = Exclusions()
                self._view.begin(update.base)
            if update.step is not None:
                self._view.apply(update.step)
                for changed in update.step.now:
                    task.intake.lanes.fan_outs.change(changed)
            if update.exclusions is not None:
                self._exclude(task, update.exclusions)
            if update.complete:
                self._held.caught_up()
                task.exclude(self._exclusions)
                if self._view.advance_to(update.control):
                    task.intake.control = update.control
            self.stop = self.stop or update.stop

    def check(self) -> None:
        if self._updates.error is not None:
            raise self._updates.error

    def _exclude(self, task: PartitionTask, changes: ExclusionChange) -> None:
        self._held.change(changes.held, changes.freed, changes.read)
        self._exclusions = changed_exclusions(self._exclusions, changes)
        lanes = task.intake.lanes
        if lanes.size and changes.held:
            # Later notifications are parked, and must not be pushed before the queued ones.
            for subscription, _ in list(lanes.waiting()):
                if subscription.id in changes.held:
                    task.lanes.defer(subscription, waits(HELD))

    def due_s(self, task: PartitionTask, now: float) -> float:
        return self._due_at - now if self._is_dirty(task) else IDLE_S

    def report(self, task: PartitionTask, now: float) -> None:
        if not self._ready and self._view.complete:
            self._ready = True
            self._write(task, -1)
        if self._progress.is_late():
            self._progress.settle(OUTCOMES_TIMEOUT_S)
        if self._marked is not None and task.worker.journal.passed():
            self._write(task, self._marked)
            self._marked = None
        if self._marked is None and now >= self._forget_at:
            # Also of an idle partition: its next message may come hours later.
            self._forget_at = now + _FORGET_S
            task.intake.outcomes.forget()
        if self._marked is None and now >= self._due_at and self._is_dirty(task):
            self._due_at = now + _REPORT_S
            self._marked = task.mark()

    def end(self, task: PartitionTask) -> None:
        self._marked = None
        if task.left is not None:
            self._write(task, task.left, stopped=True)
        elif task.stopped or task.taken.next >= 0:
            self._write(task, task.taken.next, clean=True, stopped=task.stopped)
        self._progress.settle(OUTCOMES_TIMEOUT_S)

    def _is_dirty(self, task: PartitionTask) -> bool:
        return task.taken.next > self._written or bool(task.intake.outcomes.report.signs)

    def _write(self, task: PartitionTask, position: int, clean: bool = False, stopped: bool = False) -> None:
        report, taken = task.intake.outcomes.take_report(), task.taken
        self._written = max(self._written, position)
        again = position < self._job.again.get(taken.partition, 0)
        self._progress.write(
            WorkerProgress(
                self._job.number,
                taken.partition,
                position,
                self._job.since if again else self._job.number,
                clean and not again,  # otherwise an earlier run may have begun offsets behind the position
                report.notifications,
                report.deliveries,
                tuple(report.signs),
                frozenset(report.gone),
                frozenset(report.costly),
                self._number,
                stopped,
                os.getpid(),
                taken.next,
                tuple((*each, accepted_ms) for each, accepted_ms in report.matched.items()),
                report.thinned,
                new_letters=report.new_letters,
                topic=self._job.topic,
            )
        )


def changed_exclusions(before: Exclusions, changes: ExclusionChange) -> Exclusions:
    """The exclusions after a change, without the held lanes (`HeldLanes.change`)."""
    return Exclusions(
        frozenset(),
        {},
        _changed(before.degraded, changes.degraded, changes.recovered),
        _changed(before.watched, changes.watched, changes.unwatched),
        _changed(before.unjudged, changes.unjudged, changes.judged),
        _changed(before.on_trial, changes.on_trial, changes.off_trial),
        _changed(before.erased, changes.erased, changes.erasure_done),
    )


def _changed(before: frozenset[str], more: frozenset[str], less: frozenset[str]) -> frozenset[str]:
    """Returns `before` itself if nothing changes."""
    return (before | more) - less if more or less else before
