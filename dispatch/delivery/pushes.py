"""A push, from its messages to its outcome. The hot path, the redelivery and the queues begin pushes here; `settlement`
decides after the outcome.

All I/O is the transport's.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from urllib.parse import urlsplit

from arborcast.core.errors import SecretError
from arborcast.core.recent import Recent
from arborcast.core.telemetry.tracing import Span, Tracing, TracingSettings, make_tracing, sampled, shared
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.outcomes import Outcome, classify, failed
from arborcast.dispatch.delivery.transport.contract import NO_REQUEST, NO_RESULT, PushRequest, PushResult, Transport
from arborcast.dispatch.delivery.verdict import Push
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import Subscription

logger = logging.getLogger(__name__)

# Bytes for logged envelope failures, twice: some thousands of them.
_UNWRITABLE = 1024 * 1024


def make_push_spans(settings: TracingSettings) -> PushSpans | None:
    """None if tracing is off. Raises ConfigError."""
    # The gateway has sampled.
    tracing = make_tracing(settings, "dispatch", ratio=1.0)
    return None if tracing is None else PushSpans(tracing)


class PushSpans:
    """Begins spans for pushes: in the trace of a push's notifications or, for several traces, linked to them."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def begin(self, subscription: Subscription, notifications: Sequence[Notification], attempt: int) -> Span | None:
        """The span of a push; None if none of its traces is sampled."""
        contexts = sampled([notification.traceparent for notification in notifications])
        if not contexts:
            return None
        parent = shared(contexts)
        facts: dict[str, str | int] = {
            "arborcast.subscription": subscription.id,
            "arborcast.notification": ",".join(notification.original_id for notification in notifications),
            "arborcast.attempt": attempt,
            "server.address": urlsplit(subscription.consumer.address).hostname or "",
        }
        return self._tracing.begin("push", "client", parent, () if parent else contexts, facts)

    def close(self) -> None:
        self._tracing.close()


# Payload bytes of the pushes in flight. Each is in memory twice, with its envelope.
MOST_BYTES = 64 * 1024 * 1024


def payload_bytes(notifications: Iterable[Notification]) -> int:
    return sum(len(each.payload) for each in notifications)


_Settled = Callable[[PushRequest, PushResult, Outcome], None]


class Pusher:
    """Begins pushes. Used by one thread."""

    def __init__(self, transport: Transport, spans: PushSpans | None = None) -> None:
        self.transport = transport
        self._spans = spans
        self._unwritable: Recent[str, bool] = Recent(_UNWRITABLE, age_s=3_600.0)
        self._prefix = uuid.uuid4().hex[:16]
        self._numbers = itertools.count(1)
        self._bytes = 0  # of the pushes in flight

    def has_room(self, most: int, unanswered_bytes: int = 0) -> bool:
        """Whether another push may begin: fewer than `most` are in flight, and their bytes are below the limit, without
        the `unanswered_bytes` of those that may last longer; with them below its double."""
        return self.transport.in_flight < most and self._bytes < MOST_BYTES + min(unanswered_bytes, MOST_BYTES)

    def begin(
        self,
        subscription: Subscription,
        notifications: Sequence[Notification],
        number: int,
        started_ms: int,
        envelope_of: Callable[[Subscription], Envelope],
        finished: Callable[[Push, Outcome], None],
        before_send: Callable[[Push], None] = lambda _: None,
        sequence: int | None = None,
        part_taken: Callable[[Push], None] = lambda _: None,
    ) -> tuple[Push, Outcome] | None:
        """Begin attempt `number` of these. `before_send` is called just before the push is sent, without a result. A
        later `drive` calls `part_taken` before each further part of a message, and `finished`. If no envelope can be
        made, the outcome is returned, and none of them is called. `sequence` as for `Envelope.request`."""
        span = self._spans.begin(subscription, notifications, number) if self._spans is not None else None
        try:
            envelope = envelope_of(subscription)
            traceparent = span.traceparent if span is not None else None
            push_id = f"{self._prefix}-{next(self._numbers)}"
            requests = envelope.requests(notifications, number, started_ms / 1000, traceparent, push_id, sequence)
            request = next(requests)
        except Exception as error:
            # A subscription without an envelope must not stop the others.
            if not self._unwritable.get(subscription.id):
                # Logged once per subscription and hour: every message's outcome is in the tables.
                self._unwritable.put(subscription.id, True, len(subscription.id))
                logger.exception("no envelope could be made", extra={"subscription": subscription.id})
            # A secret may be opened once its key is back, and memory may be free later; other failures are permanent.
            temporary = isinstance(error, (SecretError, MemoryError, OSError))
            outcome = failed("internal" if temporary else "envelope", str(error) or type(error).__name__)
            _end(span, outcome)
            return Push("", notifications, NO_REQUEST, NO_RESULT, started_ms), outcome

        size = payload_bytes(notifications)

        def settled(request: PushRequest, result: PushResult, outcome: Outcome) -> None:
            self._bytes -= size
            _end(span, outcome)
            if result.response:
                result = dataclasses.replace(result, response=envelope.redact(result.response))
            finished(Push(push_id, notifications, request, result, started_ms), outcome)

        begun = Push(push_id, notifications, request, NO_RESULT, started_ms)

        def following() -> Iterator[PushRequest]:
            for each in requests:
                part_taken(begun)
                yield each

        before_send(begun)
        self._bytes += size
        self._send(request, following(), settled)
        return None

    def _send(
        self, request: PushRequest, following: Iterator[PushRequest], settled: _Settled, earlier_s: float = 0.0
    ) -> None:
        """Send a request and, after its acceptance, the following ones; `earlier_s` is the duration of those before."""

        # It has no reference to itself: otherwise the bodies would wait for the garbage collector.
        def answered(result: PushResult) -> None:
            outcome, took_s = classify(result, request.result_by_ms), earlier_s + result.duration_s
            after = next(following, None) if outcome.taken else None
            if after is not None:
                self._send(after, following, settled, took_s)
            else:
                settled(request, dataclasses.replace(result, duration_s=took_s) if earlier_s else result, outcome)

        self.transport.submit(request, answered)


def _end(span: Span | None, outcome: Outcome) -> None:
    if span is not None:
        span.end(
            "" if outcome.taken else outcome.error,
            {"http.response.status_code": outcome.status} if outcome.status else None,
        )
