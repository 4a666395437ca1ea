"""The spans of pushes. Without the extra `otel` they are skipped."""

from __future__ import annotations

from typing import Any

import pytest

from arborcast.core.telemetry.tracing import Tracing
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.pushes import PushSpans
from arborcast.dispatch.delivery.transport.contract import PushResult
from arborcast.dispatch.hot.batch_outcomes import BatchOutcomes
from arborcast.dispatch.hot.lanes import LaneLimits, Lanes
from arborcast.dispatch.hot.pump import Pump, PumpRun
from arborcast.dispatch.hot.waiting import Received
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.fake_journal import FakeJournal
from tests.support.fake_transport import FakeTransport

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")

ONE, OTHER = f"00-{'a' * 32}-{'1' * 16}-01", f"00-{'b' * 32}-{'2' * 16}-01"
UNSAMPLED = f"00-{'c' * 32}-{'3' * 16}-00"


def pushed(*contexts: str, status: int = 202) -> tuple[list[Any], dict[str, str]]:
    """The spans of one push that carries notifications of these contexts, and its HTTP headers."""
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    transport = FakeTransport(lambda _: PushResult(status))
    lanes = Lanes(LaneLimits(100, 1_000_000))
    receiver = Subscription("s", EndpointReference("http://user:secret@receiver.example:81/in?key=1"))
    for number, context in enumerate(contexts):
        carried = Notification(f"n{number}", TopicPath("a"), b"<x/>", 0, traceparent=context)
        lanes.add(Received(carried, 0, number), receiver)
    spans = PushSpans(Tracing("dispatch", 1.0, SimpleSpanProcessor(exporter)))
    settlement = BatchOutcomes(FakeJournal(), PushSettings(), RetrySettings(), frozenset(), now=lambda: 1.0)
    Pump(transport, Envelope, 10, 2.0, spans=spans).run(PumpRun(lanes, settlement))
    (request,) = transport.sent
    return list(exporter.get_finished_spans()), dict(request.headers)


def test_span_and_traceparent_of_a_push() -> None:
    (span,), headers = pushed(ONE, "", ONE)
    assert span.name == "push"
    assert f"{span.parent.span_id:016x}" == "1" * 16
    assert span.attributes == {
        "arborcast.subscription": "s",
        "arborcast.notification": "n0,n1,n2",
        "arborcast.attempt": 1,
        "server.address": "receiver.example",
        "http.response.status_code": 202,
    }
    assert span.end_time >= span.start_time
    assert headers["traceparent"] == f"00-{'a' * 32}-{span.context.span_id:016x}-01"


def test_a_push_of_several_traces_is_linked_to_all_of_them() -> None:
    (span,), headers = pushed(ONE, OTHER)
    assert span.parent is None
    assert [f"{link.context.trace_id:032x}" for link in span.links] == ["a" * 32, "b" * 32]
    assert headers["traceparent"][3:35] == f"{span.context.trace_id:032x}"


def test_an_unsampled_context_is_passed_on_without_a_span() -> None:
    spans, headers = pushed(UNSAMPLED)
    assert not spans
    assert headers["traceparent"] == UNSAMPLED
    assert pushed("")[0] == []


def test_a_failed_push_is_a_failed_span() -> None:
    (span,), _ = pushed(ONE, status=503)
    assert not span.status.is_ok
    assert span.attributes["error.type"] == "server-error"
    assert span.attributes["http.response.status_code"] == 503
