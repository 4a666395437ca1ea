"""The span of a push: of the trace of what it carries, or, where that is of several, of one that is linked to them."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from core.telemetry.tracing import Span, Tracing, TracingSettings, make_tracing, sampled, shared
from dispatch.delivery.outcomes import Outcome
from topic_model.records.notifications import Notification
from topic_model.subscriptions import Subscription


def make_push_spans(settings: TracingSettings) -> PushSpans | None:
    """The spans of this process's pushes; None when none are wanted. Raises ConfigError."""
    # Which notifications have spans was decided at the gateway.
    tracing = make_tracing(settings, "dispatch", ratio=1.0)
    return None if tracing is None else PushSpans(tracing)


class PushSpans:
    """Begins spans for those pushes that are to have one."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def begin(self, subscription: Subscription, notifications: Sequence[Notification], attempt: int) -> Span | None:
        """The span of a push that leaves now; None when nothing in it is of a trace that is recorded."""
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
        """Send what is left."""
        self._tracing.close()


def end(span: Span | None, outcome: Outcome) -> None:
    """The push has come to this."""
    if span is not None:
        span.end(outcome.error, {"http.response.status_code": outcome.status} if outcome.status else None)
