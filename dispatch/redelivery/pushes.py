"""One push of the redelivery: from what a lane was given to take along, to what follows from the outcome."""

from __future__ import annotations

import dataclasses
import itertools
import uuid
from collections.abc import Callable

from dispatch.envelope import Envelope
from dispatch.outcomes import classify, unwritable
from dispatch.push_spans import PushSpans, end
from dispatch.redelivery.endpoints import Endpoints
from dispatch.redelivery.lane import Lane
from dispatch.redelivery.lanes import Lanes
from dispatch.redelivery.parked_store import Waiting
from dispatch.redelivery.settling import Settling
from dispatch.redelivery.stopping import Stopping
from dispatch.redelivery.waiting_room import WaitingRoom
from dispatch.retry import RetryPolicy
from dispatch.transport.contract import PushRequest, PushResult, Transport
from dispatch.verdict import Push
from dispatch.wall_clock import WatchedClock
from topic_model.subscriptions import Subscription

_NO_REQUEST = PushRequest("", (), b"")


class Pushes:
    """Used by one thread. Whoever may go on because a push has ended has a turn then."""

    def __init__(
        self,
        transport: Transport,
        lanes: Lanes,
        endpoints: Endpoints,
        room: WaitingRoom,
        settling: Settling,
        stopping: Stopping,
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
