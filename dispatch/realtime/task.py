"""What a task of the real-time gear does, apart from its threads and connections (`worker`).

A notification is matched when the routing view has come as far as the gateway's had when it was accepted; pushed, or
parked when it must not overtake what is; and four times a second the driver is told how far all is settled.

Order is promised for each subscription and topic, and a topic is in one partition. So whatever is parked here is held
here, at once, until the driver has said that the redelivery knows of it and has tried it.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from pyspark.core.broadcast import Broadcast

from arborcast.core import fence, liveness
from arborcast.dispatch.hot.batch_outcomes import BatchOutcomes, waits
from arborcast.dispatch.hot.hold_buffer import HoldBuffer
from arborcast.dispatch.hot.intake import HELD, SICK, Diversions, Intake
from arborcast.dispatch.hot.intervals import Intervals, Passed
from arborcast.dispatch.hot.pump import PumpRun, SlowLanes
from arborcast.dispatch.hot.recovered import RecoveredDeliveries
from arborcast.dispatch.hot.sink import Worker, make_lanes, read_notification
from arborcast.dispatch.hot.waiting import Received
from arborcast.dispatch.logs.attempts import WRITE_S
from arborcast.dispatch.matching.bases import SharedBase
from arborcast.dispatch.matching.filters import Allowance, Judge
from arborcast.dispatch.realtime.messages import ExclusionChange, WorkerProgress, WorkerUpdate
from arborcast.dispatch.realtime.view_position import ViewPosition
from arborcast.dispatch.settings import JobSettings
from arborcast.topic_model.snapshot import Snapshot, SteppedView

logger = logging.getLogger(__name__)

# Messages in lanes: beyond it nothing is matched, and the driver sees the lag grow.
_MOST_WAITING = 2_000

# Bytes of notifications, from the oldest that waits on. Small ones do not count: two thousand have some MB.
_MOST_BYTES = 64 * 1024 * 1024
_SMALL = 4_096
# Notifications for many subscriptions that may have more than that left, and how much: others pass them. One alone may
# have any number left.
_MOST_FAN_OUTS = 16
_MOST_LEFT = 200_000

# So many are matched before the sockets have their turn again.
_AT_ONCE = 200

# How often the driver is told how things stand, and how soon it is looked again for what Kafka has acknowledged.
_TELL_S = 0.25
_LOOK_S = 0.02

# How long nothing happens without a sign of life.
_REST_S = 1.0

# By then the driver has said which endpoints to leave alone, and those that did not answer may be tried again.
_FORGET_S = 2.0


@dataclass(frozen=True)
class RealtimeJob:
    """What a task needs to know. `run` is the number of the query's run, which its rows have in place of a batch's;
    what is parked has a higher one, which grows by one each millisecond since `began_s`, by the clock `clock_of` says.

    `earlier` is what an earlier run has come to behind where this one begins, and before the offset `again` of each
    partition; `since` is as in `StartState`. `passed` is what counts there for minimum intervals. `base`
    is that of the routing view where a worker is elsewhere, and cannot open the driver's files."""

    settings: JobSettings
    run: int
    began_s: float
    earlier: Broadcast[RecoveredDeliveries] | None = None
    again: Mapping[int, int] = field(default_factory=dict)
    since: int = -1
    under_way: str = ""
    passed: Passed = field(default_factory=dict)
    base: SharedBase | None = None


def clock_of(here: bool) -> Callable[[], float]:
    """The clock of the numbers of a run, whose tasks end and begin again: workers on the driver's host have one that
    is never put back."""
    return fence.clock if here else time.time


class Feeding(Protocol):
    """What the driver says."""

    @property
    def messages(self) -> deque[WorkerUpdate]:
        """Those that were not heard yet."""

    @property
    def parked(self) -> Mapping[int, int]:
        """Where the log of parked deliveries ended when this began; known before the first message."""

    @property
    def error(self) -> BaseException | None:
        """Why nothing more comes."""


class Telling(Protocol):
    """What is told to the driver, without waiting for it."""

    def tell(self, progress: WorkerProgress) -> None: ...

    def is_late(self) -> bool: ...

    def settle(self, timeout_s: float) -> None: ...


class IncomingRows(Protocol):
    """What Spark hands on: value, partition and offset of each notification."""

    @property
    def over(self) -> bool:
        """Whether there are no more."""

    @property
    def last_offset(self) -> int:
        """Of what was read; -1 before."""

    @property
    def error(self) -> BaseException | None:
        """Why they are over."""

    def first(self) -> tuple[bytes, int, int] | None:
        """The next one, which stays."""

    def drop_first(self) -> None: ...


class TaskLogs(NamedTuple):
    """The logs of a task. `control_end` says where the control log ends now."""

    feeding: Feeding
    progress: Telling
    control_end: Callable[[], int]


class Task:
    """One task. Used by one thread."""

    def __init__(self, job: RealtimeJob, worker: Worker, number: int, logs: TaskLogs) -> None:
        self._job = job
        self._worker = worker
        self._task = number
        self._push, self._retry = job.settings.push, job.settings.retry
        self._journal = worker.journal
        self._outcomes = BatchOutcomes(worker.journal, self._push, self._retry)
        self._lanes = make_lanes(self._push)
        self._run = PumpRun(self._lanes, self._outcomes, lambda most: self._intake.fill(most))
        self._held = worker.journal.parked.held
        self._diversions = Diversions(self._held)  # as of the last message
        self._earlier: RecoveredDeliveries = job.earlier.value if job.earlier is not None else RecoveredDeliveries()
        self._kept = HoldBuffer(_MOST_WAITING // 2)
        self._intake = Intake(
            worker.journal,
            self._lanes,
            self._outcomes,
            self._judge(frozenset()),
            self._diversions,
            self._earlier,
            Intervals(job.passed),
            rules=job.settings.topics,
            kept=self._kept,
            clock=time.monotonic,
        )
        self._journal.begin(job.run)
        self._number = job.run
        self._view: SteppedView | None = None
        self._complete = False
        self._ready = False
        self._told_to_stop = False
        self._partition = -1
        self._next = -1  # the offset behind what was taken in
        self._taken = 0
        self._large: deque[tuple[int, int]] = deque()  # offsets and sizes, from the oldest on that waits
        self._large_bytes = 0
        self._told = -1
        self._marked: int | None = None
        self._tell_at = 0.0
        self._matched_at = 0.0
        self._waits = False  # with the first row, for what the driver says
        self._forget_at = 0.0
        self._slow = SlowLanes(self._retry.batch_wait_s)
        self._progress = logs.progress
        self._feeding = logs.feeding
        self._position = ViewPosition(logs.control_end)
        self._tell = worker.shown.teller(number)
        self._stopped = False

    def run(self, rows: IncomingRows) -> int | None:
        """Until there are no more; how many were taken in, None when it was asked to stop, and has."""
        while not rows.over:
            liveness.beat()
            self._worker.transport.rest(self.step(rows))
        if self._stopped:
            return None
        if rows.error is not None:
            raise rows.error
        self._settle_all(stopped=False)
        return self._taken

    def step(self, rows: IncomingRows) -> float:
        """Once round; how long there is nothing to do, unless something comes."""
        self._hear()
        self._look_at_kept(time.monotonic())
        if self._told_to_stop:
            if not self._stopped:
                self._settle_all(stopped=True)
                self._stopped = True
            while rows.first() is not None:
                rows.drop_first()
            return _REST_S
        self._take(rows)
        self._turn()
        for error in (rows.error, self._feeding.error):
            if error is not None:
                raise error
        return self._idle_s(rows)

    def _hear(self) -> None:
        if self._feeding.messages:
            self._tell_matched()  # what was matched by the view as it was
        while self._feeding.messages:
            feed = self._feeding.messages.popleft()
            if feed.base:
                self._held.begin_session()
                self._diversions = Diversions(self._held)
                self._complete = False
                self._view = self._opened(feed.base)
            if feed.step is not None and self._view is not None:
                self._view.apply(feed.step)
            if feed.diverted is not None:
                self._divert(feed.diverted)
            if feed.complete:
                self._held.caught_up()
                self._apply_diversions()
            if feed.complete and self._view is not None:
                self._position.control = self._intake.control = feed.control
                self._complete = True
                if not self._ready:
                    self._ready = True
                    self._say(-1)
            self._told_to_stop = self._told_to_stop or feed.stop

    def _opened(self, base: bytes) -> SteppedView | None:
        if self._job.base is not None:
            return SteppedView(self._job.base.open())
        try:
            return SteppedView(Snapshot.open(Path(os.fsdecode(base))))
        except FileNotFoundError:
            return None  # there is a newer one, and the message that says so

    def _divert(self, diverted: ExclusionChange) -> None:
        self._held.change(diverted.held, diverted.freed, diverted.read)
        before = self._diversions
        self._diversions = Diversions(
            self._held,
            _changed(before.degraded, diverted.degraded, diverted.recovered),
            _changed(before.watched, diverted.watched, diverted.unwatched),
            _changed(before.unjudged, diverted.unjudged, diverted.judged),
            _changed(before.on_trial, diverted.on_trial, diverted.off_trial),
        )
        if self._lanes.size and diverted.held:
            # What comes now is parked, and must not be pushed before what is queued.
            for subscription, _ in list(self._lanes.waiting()):
                if subscription.id in diverted.held:
                    self._run.defer(subscription, waits(HELD))

    def _apply_diversions(self) -> None:
        """The last message of a change is here."""
        before, now = self._intake.diversions, self._diversions
        if now is before:
            return
        if self._lanes.size and (now.degraded is not before.degraded or now.on_trial is not before.on_trial):
            for subscription, _ in list(self._lanes.waiting()):
                if now.is_sick(subscription) and not before.is_sick(subscription):
                    self._run.defer(subscription, waits(SICK))
        self._outcomes.forgive(now.on_trial - before.on_trial)
        if now.unjudged != before.unjudged:
            self._intake.judge = self._judge(now.unjudged)
        self._intake.diversions = now
        self._outcomes.watched = now.watched

    def _look_at_kept(self, now: float) -> None:
        """What is kept back of a lane goes on, or is parked."""
        for subscription, kept in self._kept.look(self._held, now):
            if why := self._intake.diversions.reason(subscription):
                self._outcomes.put_off(subscription, kept, waits(why))
            else:
                for received in kept:
                    self._lanes.add(received, subscription)

    def _judge(self, unjudged: frozenset[str]) -> Judge:
        allowance = Allowance(self._push.conditions_ms, self._push.owner_conditions_ms)
        return Judge(self._worker.conditions, allowance, unjudged)

    def _take(self, rows: IncomingRows) -> None:
        """Match what has come, as far as the view allows."""
        self._waits = not self._held.has_read(self._feeding.parked)
        if self._view is None or not self._complete or self._waits:
            return
        for _ in range(_AT_ONCE):
            row = rows.first()
            if row is None or self._full:
                return
            value, self._partition, offset = row
            if self._next < 0:
                self._next = self._told = offset
            notification = read_notification(value, self._partition, offset)
            if notification is not None:
                if not self._position.covers(notification, offset, rows.last_offset):
                    self._next, self._waits = offset, True
                    return
                received = Received(notification, self._partition, offset, self._job.run, self._place_by(offset))
                self._intake.take(received, self._view.of(notification))
            if len(value) > _SMALL:
                self._large.append((offset, len(value)))
                self._large_bytes += len(value)
            self._next = offset + 1
            self._taken += 1
            rows.drop_first()

    @property
    def _full(self) -> bool:
        """Whether matching pauses: the lanes are full, in number or in bytes, or too many notifications for many
        subscriptions have deliveries left that have not joined their lanes."""
        later = self._lanes.fan_outs
        most = _MOST_FAN_OUTS if later.size < _MOST_LEFT else 2
        fan_outs = later.size >= _MOST_WAITING and later.notifications >= most
        return self._lanes.size >= _MOST_WAITING or self._large_bytes >= _MOST_BYTES or fan_outs

    def _place_by(self, offset: int) -> int:
        """By which number it is parked: what is parked later has a higher one, whatever partition it is of."""
        number = self._earlier.number(self._partition, offset)
        if number is None:
            now = self._job.run + int((clock_of(self._job.base is None)() - self._job.began_s) * 1000)
            self._number = number = max(self._number, now)
        return number

    def _turn(self) -> None:
        """Begin pushes, write down what is due, and tell the driver."""
        pump = self._worker.pump
        pump.hand_over()
        if self._outcomes.write_due():
            pump.begin(self._run)
        elif not pump.in_flight:
            self._outcomes.catch_up()
        if self._progress.is_late():
            self._progress.settle(self._job.settings.dispatch.outcomes_timeout_s)
        self._tell(pump.in_flight)
        now = time.monotonic()
        if self._intake.matched and now - self._matched_at >= WRITE_S:
            self._tell_matched()
        if self._marked is not None and self._journal.passed():
            self._say(self._marked)
            self._marked = None
        if self._marked is None and now >= self._tell_at and self._dirty:
            self._tell_at = now + _TELL_S
            self._defer_slow(now)
            if now >= self._forget_at:
                self._forget_at = now + _FORGET_S
                self._outcomes.forget()
            self._marked = self._oldest()
            while self._large and self._large[0][0] < self._marked:
                self._large_bytes -= self._large.popleft()[1]
            self._tell_matched()
            self._journal.mark()

    def _tell_matched(self) -> None:
        """Of many at once: a record for each costs more than its push."""
        self._matched_at = time.monotonic()
        if self._intake.matched:
            self._intake.tell_matched()

    @property
    def _dirty(self) -> bool:
        return self._next > self._told or bool(self._outcomes.report.signs)

    def _oldest(self) -> int:
        oldest = [each for each in (self._lanes.oldest(), self._kept.oldest()) if each is not None]
        return min(oldest, default=self._next)

    def _defer_slow(self, now: float) -> None:
        """Park what waits behind a receiver that takes too long for all of it, while others go on."""
        waiting = self._run.waiting()
        for name in self._slow.look([each for _, each in waiting.values()], self._lanes.busy, now):
            self._run.defer(waiting[name][0], waits("its receiver is slow"))

    def _say(self, position: int, clean: bool = False, stopped: bool = False) -> None:
        report = self._outcomes.take_report()
        self._told = max(self._told, position)
        again = position < self._job.again.get(self._partition, 0)
        self._progress.tell(
            WorkerProgress(
                self._job.run,
                self._partition,
                position,
                self._job.since if again else self._job.run,
                clean and not again,  # else an earlier run may have begun what is behind the position
                report.notifications,
                report.deliveries,
                tuple(report.signs),
                frozenset(report.gone),
                frozenset(report.costly),
                self._task,
                stopped,
                os.getpid(),
                self._next,
                tuple((*each, accepted_ms) for each, accepted_ms in report.matched.items()),
                report.thinned,
            )
        )

    def _settle_all(self, stopped: bool) -> None:
        """Bring what was taken in to its end, and say so."""
        pump = self._worker.pump
        self._look_at_kept(math.inf)
        while not self._lanes.empty:
            liveness.beat()
            if self._feeding.error is not None:
                raise self._feeding.error  # another run has begun
            self._turn()
            pump.drive(_LOOK_S)
        if stopped:  # this process ends: an answer that still comes spares a second push
            until = time.monotonic() + self._retry.batch_wait_s
            while pump.unanswered and time.monotonic() < until:
                liveness.beat()
                pump.drive(_LOOK_S)
        self._tell(0)
        self._marked = None
        self._tell_matched()
        self._journal.catch_up()
        if stopped or self._next >= 0:
            self._say(self._next, clean=True, stopped=stopped)
        self._progress.settle(self._job.settings.dispatch.outcomes_timeout_s)

    def _idle_s(self, rows: IncomingRows) -> float:
        if self._marked is not None or self._kept.size or self._lanes.fan_outs.size:
            return _LOOK_S
        if rows.first() is not None and self._complete and not self._full:
            return _LOOK_S if self._waits else 0.0
        tell_s = self._tell_at - time.monotonic() if self._dirty else _REST_S
        return max(0.0, min(tell_s, self._journal.due_s(), _REST_S))


def _changed(before: frozenset[str], more: frozenset[str], less: frozenset[str]) -> frozenset[str]:
    """The same set where nothing changes."""
    return (before | more) - less if more or less else before
