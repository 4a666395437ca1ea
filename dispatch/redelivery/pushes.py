"""One push of the redelivery: from what a lane was given to take along, to what follows from the outcome."""

from __future__ import annotations

import dataclasses
import itertools
import uuid
from collections.abc import Callable, Sequence

from core.wall_clock import WatchedClock
from dispatch.delivery.envelope import Envelope
from dispatch.delivery.outcomes import Outcome, classify, failed, unwritable
from dispatch.delivery.push_spans import PushSpans, end
from dispatch.delivery.retry import History, RetryPolicy
from dispatch.delivery.transport.contract import PushRequest, PushResult, Transport
from dispatch.delivery.verdict import Push, Verdict, attempt, judge, untried
from dispatch.logs.attempts import Attempt
from dispatch.logs.parked import Tries
from dispatch.redelivery.capacity_waiters import CapacityWaiters
from dispatch.redelivery.endpoints import Endpoints
from dispatch.redelivery.events import SYSTEM, DeadLetterAlarm
from dispatch.redelivery.journal import Journal
from dispatch.redelivery.lanes import Lane, Lanes
from dispatch.redelivery.parked_store import ParkedStore, Waiting
from dispatch.redelivery.suspension import Suspensions
from topic_model.subscriptions import Subscription

# Attempts made here belong to no batch.
NO_BATCH = -1

# How many deliveries that are over (too old, not wanted any more) are ended before another lane has its turn.
_ENDED_AT_ONCE = 500

# Later than any notification was accepted.
_EVER_MS = 1 << 62


class RedeliveryOutcomes:
    """Rows to the journal, tries and ends to the store and the journal. Used by one thread."""

    def __init__(
        self, store: ParkedStore, journal: Journal, chance: Callable[[], float], alarm: DeadLetterAlarm
    ) -> None:
        self._store = store
        self._journal = journal
        self._chance = chance
        self._alarm = alarm
        self.delivered = 0
        self.dead = 0

    def settle(
        self,
        subscription: Subscription,
        policy: RetryPolicy,
        taken: Sequence[Waiting],
        push: Push,
        outcome: Outcome,
        now_ms: int,
        probe: bool,
    ) -> bool:
        """A push has an outcome; whether the receiver has ended the subscription with it.

        A push that only probed whether its endpoint is back does not count against the message when it is not; when
        the endpoint answers, and refuses the message, it does, or what it always fails at would be tried for ever.
        """
        gone = False
        excused = probe and outcome.endpoint_unreachable
        for waiting in taken:
            number, counted = waiting.tries.number + 1, waiting.tries.counted + (not excused)
            history = History(waiting.notification.accepted_ms, counted, len(taken) - 1)
            verdict = judge(outcome, policy, history, now_ms, self._chance(), push.result.retry_after_s)
            tries = Tries(number, counted, verdict.next_ms, now_ms)
            if verdict.state == "parked" and not self._store.tried(waiting.delivery, tries):
                continue  # the log says meanwhile that it is finished; then this was one push too many
            row = attempt(subscription, waiting.notification, number, verdict, outcome, push, NO_BATCH)
            self._journal.record(row)
            if verdict.state == "parked":
                self._journal.tried(waiting.delivery, tries)
            else:
                self._end(waiting, row)
            self.delivered += verdict.state == "delivered"
            gone = gone or verdict.state == "cancelled"
        return gone

    def cancel(self, lane: Lane, now_ms: int) -> bool:
        """End what waits in a lane, because nobody wants it any more; whether there may be more of it."""
        why = failed("ended", "the subscription is over")
        return self._end_untried(lane, _EVER_MS, Verdict("cancelled"), why, now_ms)

    def unwanted(self, lane: Lane, waiting: Waiting, now_ms: int) -> None:
        """End what was parked unjudged, because the subscription's conditions do not want it."""
        why = failed("skipped", "its conditions do not select it, or would cost more than they may")
        verdict, number = Verdict("cancelled"), waiting.tries.number
        row = untried(lane.name, lane.endpoint, waiting.notification, number, verdict, why, now_ms, NO_BATCH)
        self._journal.record(row)
        self._end(waiting, row)

    def expire(self, lane: Lane, accepted_ms: int, now_ms: int) -> bool:
        """End what was accepted by then, because it is too old; whether there may be more of it."""
        why = failed("lifespan", "it was not delivered within its lifespan")
        return self._end_untried(lane, accepted_ms, Verdict("expired"), why, now_ms)

    def _end_untried(self, lane: Lane, accepted_ms: int, verdict: Verdict, why: Outcome, now_ms: int) -> bool:
        ended = self._store.accepted_before(lane.name, accepted_ms, _ENDED_AT_ONCE, lane.flight)
        for waiting in ended:
            number = waiting.tries.number
            row = untried(lane.name, lane.endpoint, waiting.notification, number, verdict, why, now_ms, NO_BATCH)
            self._journal.record(row)
            self._end(waiting, row)
        return len(ended) == _ENDED_AT_ONCE

    def _end(self, waiting: Waiting, row: Attempt) -> None:
        if row.state in ("dead", "expired"):
            self._journal.write_dead_letter(waiting.delivery, waiting.notification, row)
            # A dead subscriber of these events would hear of itself, once a minute and for ever.
            if not row.topic.startswith(SYSTEM):
                self._alarm.died(row.subscription, row.endpoint, row.detail)
            self.dead += 1
        self._store.finish(waiting.delivery)
        self._journal.finished(waiting.delivery, tried=waiting.tries.number > 0)


_NO_REQUEST = PushRequest("", (), b"")


class Pushes:
    """Used by one thread. Whoever may go on because a push has ended has a turn then."""

    def __init__(
        self,
        transport: Transport,
        lanes: Lanes,
        endpoints: Endpoints,
        room: CapacityWaiters,
        settling: RedeliveryOutcomes,
        stopping: Suspensions,
        envelope_of: Callable[[Subscription], Envelope],
        clock: WatchedClock,
        spans: PushSpans | None,
    ) -> None:
        self._transport = transport
        self._lanes = lanes
        self._endpoints = endpoints
        self._room = room
        self._settling = settling
        self._stopping = stopping
        self._envelope_of = envelope_of
        self._clock = clock
        self._spans = spans
        self._prefix = uuid.uuid4().hex[:16]
        self._numbers = itertools.count(1)

    def begin(
        self, lane: Lane, subscription: Subscription, policy: RetryPolicy, taken: list[Waiting], now_ms: int
    ) -> None:
        """Push these, which have been tried equally often. That there is room, and that the endpoint may be tried, is
        the caller's to see to."""
        number = taken[0].tries.number + 1
        notifications = [waiting.notification for waiting in taken]
        first_try = number == 1
        span = self._spans.begin(subscription, notifications, number) if self._spans is not None else None
        try:
            envelope = lane.envelope = lane.envelope or self._envelope_of(subscription)
            request = envelope.request(notifications, number, now_ms / 1000, span.traceparent if span else None)
        except Exception as error:
            # Whatever it is, only this message is to suffer for it.
            push = Push("", notifications, _NO_REQUEST, PushResult(0), now_ms)
            outcome = unwritable(error)
            end(span, outcome)
            self._settling.settle(subscription, policy, taken, push, outcome, now_ms, probe=False)
            self._lanes.turn(lane, now_ms)
            return
        endpoint = lane.endpoint
        probe = self._endpoints.begin_push(endpoint)
        lane.flight.update(waiting.delivery for waiting in taken)
        lane.pushing = lane.pushing or first_try
        self._room.enter(endpoint)

        def finished(result: PushResult) -> None:
            ended_ms = self._clock.now_ms()
            outcome = classify(result)
            end(span, outcome)
            lane.flight.difference_update(waiting.delivery for waiting in taken)
            lane.pushing = lane.pushing and not first_try
            self._lanes.go_on(self._room.leave(endpoint), ended_ms)
            freed = self._endpoints.push_ended(endpoint, notifications[0].id, outcome, result, probe, ended_ms)
            self._lanes.go_on(freed, ended_ms)
            if result.response:
                result = dataclasses.replace(result, response=envelope.redact(result.response))
            push = Push(f"{self._prefix}-{next(self._numbers)}", notifications, request, result, now_ms)
            if self._settling.settle(subscription, policy, taken, push, outcome, ended_ms, probe):
                self._stopping.receiver_gone(lane, ended_ms)
            elif not outcome.delivered:
                self._stopping.push_failed(lane, ended_ms)
            self._lanes.turn(lane, ended_ms)

        self._transport.submit(request, finished)
