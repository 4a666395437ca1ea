"""Drives the pushes of the hot path, lane by lane, within the limit of pushes in flight.

All I/O is in the transport and the journal, so tests use fake ones.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.outcomes import Outcome
from arborcast.dispatch.delivery.pushes import Pusher, PushSpans, payload_bytes
from arborcast.dispatch.delivery.settlement import Deferral
from arborcast.dispatch.delivery.transport.contract import PushResult, Transport
from arborcast.dispatch.delivery.verdict import Push
from arborcast.dispatch.hot.batch_outcomes import UNANSWERED, BatchOutcomes, waits
from arborcast.dispatch.hot.lanes import Lanes
from arborcast.dispatch.hot.waiting import Received
from arborcast.dispatch.monitoring.in_flight_gauge import ignore_count
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import TopicPath

# The next batch waits for the longest lane of this one. So when other lanes are done, messages of a slow receiver go to
# the redelivery. While most lanes are busy, the load is high and no receiver is slow. Up to this number of lanes count
# as stragglers even before another one has ended.
_FEW = 8

# With answers within this time a receiver accepts fifty pushes a second, one after the other.
_RESPONSIVE_S = 0.02

# A longer round is the fault of the machine, not of a receiver, and the redelivery would be slower still.
_BUDGETS_OF_RESPONSIVE = 5


@dataclass(slots=True)
class LaneProgress:
    """A lane since it was last empty: its waiting messages, its pushes and their messages. Parallel pushes share the
    time. `turn` distinguishes such periods; 0 before the first push."""

    subscription: str
    waiting: int = 0
    pushes: int = 0
    messages: int = 0
    spent_s: float = 0.0
    turn: int = 0

    def remaining_s(self) -> float:
        """The time for the waiting messages at the pace so far; infinite before the first push."""
        if not self.pushes:
            return math.inf
        return self.waiting / self.messages * self.spent_s

    def is_slow(self, budget_s: float) -> bool:
        """Whether the receiver takes too long for its waiting messages. A receiver with quick answers never does: the
        redelivery would be no faster."""
        return not self.is_responsive and self.remaining_s() > budget_s

    @property
    def is_responsive(self) -> bool:
        return self.pushes > 0 and self.spent_s / self.pushes < _RESPONSIVE_S


def stragglers(unfinished: Collection[LaneProgress], finished: int, elapsed_s: float, budget_s: float) -> list[str]:
    """The subscriptions of lanes for which the batch does not wait, after this number of `finished` lanes."""
    if elapsed_s < budget_s or len(unfinished) > max(finished, _FEW):
        return []
    return [
        progress.subscription
        for progress in unfinished
        if progress.remaining_s() > (budget_s * _BUDGETS_OF_RESPONSIVE if progress.is_responsive else budget_s)
        and (progress.pushes or elapsed_s > 2 * budget_s)
    ]


class SlowLanes:
    """For a task without end: lanes whose messages have waited longer than `budget_s` and need as long again. They
    delay the others."""

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._since: dict[tuple[str, int], float] = {}

    def late(self, waiting: Collection[LaneProgress], busy: int, now: float) -> list[str]:
        """The subscriptions whose messages are deferred; `busy` lanes have a push in flight."""
        turns = {(each.subscription, each.turn): each for each in waiting}
        self._since = {turn: self._since.get(turn, now) for turn in turns}
        late = [
            each.subscription
            for turn, each in turns.items()
            if now - self._since[turn] > self._budget_s and each.is_slow(self._budget_s)
        ]
        return late if len(late) <= max(_FEW, busy // 2) else []


# Longest wait for an outcome, while earlier ones wait to be written.
_DRIVE_S = 0.1

_CHECK_S = 0.25

# Deliveries of notifications with many recipients join the lanes while fewer than this number wait there, this number
# per round at most, and one with every second push, so that they progress beside a backlog.
_FAN_OUT_READY = 32
_FAN_OUT_PIECES = 2
_FAN_OUT_EACH = 2

# Limit of unanswered pushes, as a multiple of the others: each has a connection until its timeout.
_MOST_UNANSWERED = 3


class Pump:
    """Pushes the messages of lanes and settles each outcome. It waits up to `budget_s` for a few slow lanes."""

    def __init__(
        self,
        transport: Transport,
        envelope_of: Callable[[Subscription], Envelope],
        max_in_flight: int,
        budget_s: float,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        spans: PushSpans | None = None,
        timeout_s: float = math.inf,
    ) -> None:
        """`timeout_s` is that of a push: with one below `budget_s` no push is handed over."""
        self._transport = transport
        self._pusher = Pusher(transport, spans)
        self._envelope_of = envelope_of
        self._max_in_flight = max_in_flight
        self._budget_s = budget_s
        self._parks_unanswered = timeout_s > budget_s
        self._now = now
        self._clock = clock
        self._awaited: OrderedDict[str, _Awaited] = OrderedDict()  # by push, in the order in which they began
        self._late_at = -math.inf  # no push is late before
        self._begun = 0
        self._unanswered_bytes = 0

    def run(self, run: PumpRun, between: Callable[[float], None] = lambda now: None) -> None:
        """Returns when every lane is empty. A receiver's failure is settled, never raised. `between` is called after
        each turn, with the time. Raises InfrastructureError when outcomes cannot be written for too long."""
        while not run.lanes.empty:
            between(self.turn(run))
            self._transport.drive(_DRIVE_S if self._transport.in_flight else 0.0)
        run.show(0)

    def turn(self, run: PumpRun) -> float:
        """Start pushes, write due outcomes, and defer lanes that delay the others. Returns the time. While outcomes
        cannot be written nothing is pushed: a crash would repeat it."""
        now = self._clock()
        if run.started is None:
            run.started = now
        if now > self._late_at:
            self._park_unanswered(now)
        if run.outcomes.journal.write_due():
            self.begin(run)
        elif not self.in_flight:
            run.outcomes.journal.catch_up()
            waited_from, now = now, self._clock()
            run.started += now - waited_from  # not the receivers' time
        run.show(self._transport.in_flight)
        run.defer_late(now, self._budget_s)
        return now

    @property
    def in_flight(self) -> int:
        """Pushes in flight for which lanes wait."""
        return len(self._awaited)

    @property
    def unanswered(self) -> int:
        """The others."""
        return self._transport.in_flight - len(self._awaited)

    def begin(self, run: PumpRun) -> None:
        """Begin pushes up to the limits."""
        # An unanswered push frees its slot, but still costs a connection, and the bytes of its messages.
        most = self._max_in_flight + min(self.unanswered, _MOST_UNANSWERED * self._max_in_flight)
        lanes, pieces = run.lanes, _FAN_OUT_PIECES
        while self._pusher.has_room(most, self._unanswered_bytes):
            taken = run.take()
            if taken is not None:
                self._begin(run, *taken)
                self._begun += 1
                if lanes.fan_outs.size and self._begun % _FAN_OUT_EACH == 0:
                    run.fill(1)
            elif lanes.fan_outs.size and lanes.size < _FAN_OUT_READY and pieces:
                pieces -= 1
                run.fill(_FAN_OUT_READY - lanes.size)
            else:
                return

    def _park_unanswered(self, now: float) -> None:
        """Park the messages of pushes without an answer after `budget_s`: the redelivery waits for their results."""
        if self._next_late_at() < now:
            self._transport.drive(0.0)  # pushes answered while this thread was suspended are not late
        while self._next_late_at() < now:
            _, awaited = self._awaited.popitem(last=False)
            self._unanswered_bytes += payload_bytes(awaited.push.notifications)
            result = PushResult(0, duration_s=self._clock() - awaited.began)
            awaited.run.settle(awaited.subscription, awaited.taken, awaited.push._replace(result=result), UNANSWERED)
        self._late_at = min(self._next_late_at(), now + self._budget_s)

    def _next_late_at(self) -> float:
        oldest = next(iter(self._awaited.values()), None) if self._parks_unanswered else None
        return math.inf if oldest is None else oldest.began + self._budget_s

    def _begin(self, run: PumpRun, subscription: Subscription, taken: Sequence[Received]) -> None:
        topic = taken[0].notification.topic
        unreachable = run.outcomes.unreachable(subscription)
        if unreachable is not None:
            run.outcomes.write_unpushed(subscription, taken, unreachable)
            run.end(subscription, topic, unreachable)
            return
        taken = run.outcomes.in_time(subscription, taken)
        if not taken:
            run.end(subscription, topic, None)
            return
        notifications = [received.notification for received in taken]

        def before_send(push: Push) -> None:
            self._awaited[push.id] = _Awaited(run, subscription, taken, push, self._clock())

        def finished(push: Push, outcome: Outcome) -> None:
            if self._awaited.pop(push.id, None) is not None:
                run.settle(subscription, taken, push, outcome)
            else:
                self._unanswered_bytes -= payload_bytes(notifications)
                run.outcomes.answered(subscription, taken, push, outcome)

        def part_taken(push: Push) -> None:
            if push.id not in self._awaited:
                run.outcomes.still_in_flight(subscription, taken, push)

        started_ms, envelope_of = int(self._now() * 1000), self._envelope_of
        unmade = self._pusher.begin(
            subscription, notifications, 1, started_ms, envelope_of, finished, before_send, part_taken=part_taken
        )
        if unmade is not None:
            run.settle(subscription, taken, *unmade)


class _Awaited(NamedTuple):
    """A push that a lane waits for."""

    run: PumpRun
    subscription: Subscription
    taken: Sequence[Received]
    push: Push
    began: float


class PumpRun:
    """The lanes of a task, and their progress."""

    def __init__(
        self,
        lanes: Lanes,
        outcomes: BatchOutcomes,
        fill: Callable[[int], None] = ignore_count,
        show: Callable[[int], None] = ignore_count,
        slow: SlowLanes | None = None,
    ) -> None:
        """`fill` lets deliveries of `Lanes.fan_outs` join the lanes; `show` is called with the number of pushes in
        flight. `slow` is for a task without end; otherwise `stragglers` are deferred."""
        self.lanes = lanes
        self.outcomes = outcomes
        self.fill = fill
        self.show = show
        self.started: float | None = None
        """When the first push could begin, without the time in which outcomes could not be written."""
        self._slow = slow
        self._check_at = 0.0
        self._finished = 0
        self._pace: dict[str, LaneProgress] = {}  # by subscription
        self._turns = itertools.count(1)

    def take(self) -> tuple[Subscription, list[Received]] | None:
        taken = self.lanes.take(self.outcomes.drop_older)
        if taken is not None and (name := taken[0].id) not in self._pace:
            self._pace[name] = LaneProgress(name, turn=next(self._turns))
        return taken

    def settle(self, subscription: Subscription, taken: Sequence[Received], push: Push, outcome: Outcome) -> None:
        duration_s = push.result.duration_s
        pace = self._pace[subscription.id]
        pace.pushes += 1
        pace.messages += len(taken)
        pace.spent_s += duration_s / self.lanes.in_flight(subscription.id)
        self.lanes.answered(subscription.id, outcome.taken, duration_s)
        deferral = self.outcomes.settle(subscription, taken, push, outcome)
        self.end(subscription, taken[0].notification.topic, deferral)

    def end(self, subscription: Subscription, topic: TopicPath, deferral: Deferral | None) -> None:
        """Settle the taken messages; the other messages of the lane continue, or are deferred as `deferral`."""
        if deferral is not None:
            self.defer(subscription, deferral)
        if deferral := self.lanes.take_deferral(subscription.id):
            self.outcomes.write_unpushed(subscription, self.lanes.drain(subscription.id), deferral)
        if not self.lanes.settle(subscription.id, topic):
            self._finished += 1
            self._pace.pop(subscription.id, None)

    def defer_late(self, now: float, budget_s: float) -> None:
        """Park the messages of slow lanes: see `stragglers` and `SlowLanes`. Their pushes in flight continue up to the
        timeout."""
        elapsed_s = now - self.started if self.started is not None else 0.0
        if now < self._check_at or (self._slow is None and elapsed_s < budget_s):
            return
        self._check_at = now + _CHECK_S
        if self._slow is not None:
            waiting = self.waiting()
            late = self._slow.late([each for _, each in waiting.values()], self.lanes.busy, now)
        elif self.lanes.fan_outs.size or self.lanes.waiting_lanes > max(self._finished, _FEW):
            return  # a check of each lane would cost too much
        else:
            waiting = self.waiting()
            progress = [each for _, each in waiting.values()]
            late = stragglers(progress, self._finished, elapsed_s, budget_s)
        why = "its receiver is slow" if self._slow is not None else "the batch did not wait for it any longer"
        for name in late:
            self.defer(waiting[name][0], waits(why))

    def waiting(self) -> dict[str, tuple[Subscription, LaneProgress]]:
        """The lanes with waiting messages, without those that are dropped."""
        self.lanes.prune(self.outcomes.drop_older)
        found: dict[str, tuple[Subscription, LaneProgress]] = {}
        for subscription, count in self.lanes.waiting():
            progress = self._pace.get(subscription.id) or LaneProgress(subscription.id)
            progress.waiting = count
            found[subscription.id] = subscription, progress
        return found

    def defer(self, subscription: Subscription, deferral: Deferral) -> None:
        """Park or cancel the messages of a lane, after the outcome of its push in flight."""
        self.outcomes.write_unpushed(subscription, self.lanes.defer(subscription.id, deferral), deferral)
        if not self.lanes.is_busy(subscription.id):
            self._pace.pop(subscription.id, None)
