"""Working through lanes: begin pushes, take their outcomes, never more under way than allowed.

All I/O is the transport's and the settlement's journal's, so this is tested with fake ones.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from core.recent import Recent
from dispatch.delivery.envelope import Envelope
from dispatch.delivery.outcomes import Outcome, classify, unwritable
from dispatch.delivery.push_spans import PushSpans, end
from dispatch.delivery.transport.contract import PushRequest, PushResult, Transport
from dispatch.delivery.verdict import Push
from dispatch.hot.batch_outcomes import BatchOutcomes, PutOff, waits
from dispatch.hot.lanes import Lanes, Received
from dispatch.monitoring.under_way import nobody
from topic_model.subscriptions import Subscription

# So few lanes are taken for stragglers even when no other one has ended yet.
_FEW = 8


@dataclass(frozen=True, slots=True)
class Progress:
    """A lane that has something waiting: how much, and how it went so far in this batch."""

    subscription: str
    waiting: int
    pushes: int
    messages: int
    spent_s: float

    def remaining_s(self) -> float:
        """How long the rest will take; unknown counts as for ever."""
        if not self.pushes:
            return math.inf
        return self.waiting / self.messages * self.spent_s


def stragglers(unfinished: Collection[Progress], finished: int, elapsed_s: float, budget_s: float) -> list[str]:
    """The subscriptions whose lanes are not to be waited for, `finished` other lanes being through."""
    if elapsed_s < budget_s or len(unfinished) > max(finished, _FEW):
        return []
    return [
        progress.subscription
        for progress in unfinished
        if progress.remaining_s() > budget_s and (progress.pushes or elapsed_s > 2 * budget_s)
    ]


logger = logging.getLogger(__name__)

# An outcome ends the wait for outcomes. This is how long the ones before it may have to wait to be written down.
_DRIVE_S = 0.1

_LOOK_S = 0.25

# Bytes for those of which the log has said that no envelope can be made, twice: some thousands.
_UNWRITABLE = 1024 * 1024

_NO_RESULT = PushResult(0)

_NO_REQUEST = PushRequest("", (), b"")


class Pump:
    """Pushes what waits in lanes, and has each outcome settled. It waits `budget_s` for a few slow lanes."""

    def __init__(
        self,
        transport: Transport,
        envelope_of: Callable[[Subscription], Envelope],
        max_in_flight: int,
        budget_s: float,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        spans: PushSpans | None = None,
    ) -> None:
        self._transport = transport
        self._envelope_of = envelope_of
        self._max_in_flight = max_in_flight
        self._budget_s = budget_s
        self._now = now
        self._clock = clock
        self._spans = spans
        self._unwritable: Recent[str, bool] = Recent(_UNWRITABLE, age_s=3_600.0)
        self._prefix = uuid.uuid4().hex[:16]
        self._numbers = itertools.count(1)

    def run(self, lanes: Lanes, settlement: BatchOutcomes, tell: Callable[[int], None] = nobody) -> None:
        """Return when every lane is empty. A receiver's failure is settled, never raised. `tell` is told how many
        pushes are under way, once per round.

        Outcomes are written down on the way. While they cannot be, nothing more is pushed: after a crash it would be
        pushed again, and the batch has to wait for them anyway. Raises InfrastructureError when that takes too long.
        """
        run = _Run(lanes, settlement)
        started = self._clock()
        look = started + self._budget_s
        while not lanes.empty:
            if settlement.write_due():
                self._begin_all(run)
            elif not self._transport.in_flight:
                waited_from = self._clock()
                settlement.catch_up()
                # No lane is to blame for this time.
                waited_s = self._clock() - waited_from
                started, look = started + waited_s, look + waited_s
                continue
            tell(self._transport.in_flight)
            self._transport.drive(_DRIVE_S)
            now = self._clock()
            if now >= look:
                look = now + _LOOK_S
                run.put_off_stragglers(now - started, self._budget_s)
        tell(0)

    def _begin_all(self, run: _Run) -> None:
        while self._transport.in_flight < self._max_in_flight and (taken := run.lanes.take()) is not None:
            self._begin(run, *taken)

    def _begin(self, run: _Run, subscription: Subscription, taken: Sequence[Received]) -> None:
        away = run.settlement.away(subscription)
        if away is not None:
            run.settlement.put_off(subscription, taken, away)
            run.end(subscription, away)
            return
        notifications = [received.notification for received in taken]
        started_ms = int(self._now() * 1000)
        span = self._spans.begin(subscription, notifications, 1) if self._spans is not None else None
        try:
            envelope = self._envelope_of(subscription)
            request = envelope.request(notifications, attempt=1, traceparent=span.traceparent if span else None)
        except Exception as error:
            # One subscription that we cannot write an envelope for must not stop all the others.
            if not self._unwritable.get(subscription.id):
                # Once for each, for a while: what becomes of every message is in the tables.
                self._unwritable.put(subscription.id, True, len(subscription.id))
                logger.exception("no envelope could be made", extra={"subscription": subscription.id})
            push = Push("", notifications, _NO_REQUEST, _NO_RESULT, started_ms)
            outcome = unwritable(error)
            end(span, outcome)
            run.settle(subscription, taken, push, outcome)
            return

        def finished(result: PushResult) -> None:
            if result.response:
                result = dataclasses.replace(result, response=envelope.redact(result.response))
            push = Push(f"{self._prefix}-{next(self._numbers)}", notifications, request, result, started_ms)
            outcome = classify(result)
            end(span, outcome)
            run.settle(subscription, taken, push, outcome)

        self._transport.submit(request, finished)


class _Run:
    """One call of `run`: the lanes, and how each has fared."""

    def __init__(self, lanes: Lanes, settlement: BatchOutcomes) -> None:
        self.lanes = lanes
        self.settlement = settlement
        self._finished = 0
        self._pace: dict[str, list[float]] = {}  # by subscription: pushes, messages, seconds

    def settle(self, subscription: Subscription, taken: Sequence[Received], push: Push, outcome: Outcome) -> None:
        """A push has an outcome."""
        pace = self._pace.setdefault(subscription.id, [0, 0, 0.0])
        pace[0] += 1
        pace[1] += len(taken)
        pace[2] += push.result.duration_s
        self.end(subscription, self.settlement.settle(subscription, taken, push, outcome))

    def end(self, subscription: Subscription, rest: PutOff | None) -> None:
        """Whatever was taken from the lane has its end; what is left goes on, or is put off."""
        if rest is not None:
            self.settlement.put_off(subscription, self.lanes.drain(subscription.id), rest)
        if not self.lanes.settle(subscription.id):
            self._finished += 1

    def put_off_stragglers(self, elapsed_s: float, budget_s: float) -> None:
        """See `stragglers`. What is under way is still waited for: that has a time-out."""
        waiting = {
            subscription.id: (subscription, Progress(subscription.id, count, *self._paced(subscription.id)))
            for subscription, count in self.lanes.waiting()
        }
        progress = [each for _, each in waiting.values()]
        for name in stragglers(progress, self._finished, elapsed_s, budget_s):
            why = waits("the batch did not wait for it any longer")
            self.settlement.put_off(waiting[name][0], self.lanes.drain(name), why)

    def _paced(self, name: str) -> tuple[int, int, float]:
        pushes, messages, spent_s = self._pace.get(name, (0, 0, 0.0))
        return int(pushes), int(messages), spent_s
