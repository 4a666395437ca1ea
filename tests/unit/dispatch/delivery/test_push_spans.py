"""The spans of pushes. Without the extra `otel` they are skipped."""

from __future__ import annotations

from typing import Any

import pytest

from arborcast.core.telemetry.tracing import Tracing
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.pushes import Pusher, PushSpans
from arborcast.dispatch.delivery.transport.contract import PushResult
from tests.support.fake_transport import FakeTransport
from tests.support.make import notification, subscription

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")

ONE, OTHER = f"00-{'a' * 32}-{'1' * 16}-01", f"00-{'b' * 32}-{'2' * 16}-01"
UNSAMPLED = f"00-{'c' * 32}-{'3' * 16}-00"


def pushed(*contexts: str, status: int = 202) -> tuple[list[Any], dict[str, str]]:
    """The spans of one push that carries notifications of these contexts, and its HTTP headers."""
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    transport = FakeTransport(lambda _: PushResult(status))
    receiver = subscription(url="http://user:secret@receiver.example:81/in?key=1")
    carried = [notification(f"n{number}", traceparent=context) for number, context in enumerate(contexts)]
    pusher = Pusher(transport, PushSpans(Tracing("dispatch", 1.0, SimpleSpanProcessor(exporter))))
    pusher.begin(receiver, carried, 1, 0, Envelope, lambda *_: None)
    transport.drive(0.0)
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
