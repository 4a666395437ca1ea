"""The gateway's spans; skipped without the extra `otel`."""

from __future__ import annotations

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.core.telemetry.tracing import Tracing
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

PUBLISHER = f"00-{'a' * 32}-{'b' * 16}-01"


def traced(ratio: float) -> tuple[GatewayParts, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    parts = GatewayParts()
    parts.gateway.tracing = Tracing("gateway", ratio, SimpleSpanProcessor(exporter))
    return parts, exporter


def test_notifications_carry_the_context_of_their_span() -> None:
    parts, exporter = traced(0.0)
    parts.post(soap.envelope(soap.notify(soap.message(), soap.message())), traceparent=PUBLISHER)
    append, notify = exporter.get_finished_spans()
    assert (append.name, notify.name) == ("append", "Notify")
    assert notify.parent is not None
    assert f"{notify.parent.span_id:016x}" == "b" * 16
    assert append.attributes == {"arborcast.notifications": 2}
    context = f"00-{'a' * 32}-{notify.context.span_id:016x}-01"
    assert [each.traceparent for each in parts.notifications.accepted] == [context, context]


def test_sampling_without_a_context() -> None:
    parts, exporter = traced(0.0)
    parts.post(soap.envelope(soap.notify()))
    assert not exporter.get_finished_spans()
    assert parts.notifications.accepted[0].traceparent == ""

    parts, exporter = traced(1.0)
    parts.post(soap.envelope(soap.notify()))
    assert [span.name for span in exporter.get_finished_spans()] == ["append", "Notify"]
    assert parts.notifications.accepted[0].traceparent


def test_a_refused_request_is_a_failed_span() -> None:
    parts, exporter = traced(1.0)
    parts.notifications.error = InfrastructureError("away", 1.0)
    assert parts.post(soap.envelope(soap.notify())).status == 503
    assert all(not span.status.is_ok for span in exporter.get_finished_spans())
    assert len(exporter.get_finished_spans()) == 2
