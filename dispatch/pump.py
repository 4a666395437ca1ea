"""Working through lanes: begin pushes, take their outcomes, never more under way than allowed.

All I/O is the transport's, so this is tested with a fake one.
"""

from __future__ import annotations

import itertools
import logging
import time
import uuid
from collections.abc import Callable, Sequence

from dispatch.attempts import Attempt, ErrorClass
from dispatch.envelope import Envelope
from dispatch.lanes import Lanes
from dispatch.outcomes import Outcome, classify
from dispatch.transport.contract import PushRequest, PushResult, Transport
from topic_model.notifications import Notification
from topic_model.subscriptions import Subscription

logger = logging.getLogger(__name__)

# Only a bound for the case that a transport forgets to wake up; outcomes end the wait.
_DRIVE_S = 1.0

_NO_RESULT = PushResult(0)


class Pump:
    """Pushes what waits in lanes and reports one Attempt per notification, in the order in which they were settled."""

    def __init__(
        self,
        transport: Transport,
        envelope_of: Callable[[Subscription], Envelope],
        record: Callable[[Attempt], None],
        max_in_flight: int,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._transport = transport
        self._envelope_of = envelope_of
        self._record = record
        self._max_in_flight = max_in_flight
        self._now = now
        self._prefix = uuid.uuid4().hex[:16]
        self._numbers = itertools.count(1)

    def run(self, lanes: Lanes, batch: int) -> None:
        """Return when every lane is empty. A receiver's failure becomes an attempt, never an exception."""
        while not lanes.empty:
            while self._transport.in_flight < self._max_in_flight:
                taken = lanes.take()
                if taken is None:
                    break
                self._begin(lanes, batch, *taken)
            self._transport.drive(_DRIVE_S)

    def _begin(
        self, lanes: Lanes, batch: int, subscription: Subscription, notifications: Sequence[Notification]
    ) -> None:
        started = self._now()
        try:
            request = self._envelope_of(subscription).request(notifications, attempt=1)
        except Exception as error:
            # One subscription that we cannot write an envelope for must not stop all the others.
            logger.exception("no envelope could be made for subscription %s", subscription.id)
            outcome = Outcome("failed", "internal", f"no envelope: {error}")
            self._report(subscription, notifications, outcome, _NO_RESULT, None, started, batch)
            lanes.settle(subscription.id)
            return

        def finished(result: PushResult) -> None:
            outcome = classify(result)
            self._report(subscription, notifications, outcome, result, request, started, batch)
            if outcome.endpoint_away:
                self._skip(lanes, subscription, outcome.error, batch)
            lanes.settle(subscription.id)

        self._transport.submit(request, finished)

    def _skip(self, lanes: Lanes, subscription: Subscription, error: ErrorClass, batch: int) -> None:
        """What waits behind a push that found the endpoint away is not tried: each would cost another time-out."""
        skipped = lanes.drain(subscription.id)
        if skipped:
            outcome = Outcome("failed", "skipped", f"not tried: the push before it ended with {error!r}")
            self._report(subscription, skipped, outcome, _NO_RESULT, None, self._now(), batch)

    def _report(
        self,
        subscription: Subscription,
        notifications: Sequence[Notification],
        outcome: Outcome,
        result: PushResult,
        request: PushRequest | None,
        started: float,
        batch: int,
    ) -> None:
        push = f"{self._prefix}-{next(self._numbers)}"
        for notification in notifications:
            self._record(
                Attempt(
                    notification=notification.id,
                    subscription=subscription.id,
                    topic=notification.topic,
                    endpoint=subscription.consumer.address,
                    number=1,
                    push=push,
                    state=outcome.state,
                    accepted_ms=notification.accepted_ms,
                    started_ms=int(started * 1000),
                    duration_ms=round(result.duration_s * 1000, 3),
                    error=outcome.error,
                    detail=outcome.detail[:500],
                    status=result.status,
                    messages=len(notifications),
                    request_bytes=len(request.body) if request else 0,
                    response_bytes=result.response_bytes,
                    response=result.response,
                    reused=result.reused,
                    batch=batch,
                )
            )
