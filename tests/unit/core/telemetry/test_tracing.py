"""Spans, as a collector gets them. What is not installed is not tested: the extra is `otel`."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from arborcast.core.errors import ConfigError
from arborcast.core.telemetry.tracing import NO_TRACING, Tracing, TracingSettings, make_tracing, sampled, trace_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"
UNSAMPLED = PARENT[:-1] + "0"


def test_without_a_collector_there_is_nothing_and_nothing_is_loaded() -> None:
    assert make_tracing(NO_TRACING, "gateway") is None
    code = (
        "import sys, ingest.http.app, dispatch.hot.pump, core.telemetry.tracing as t\n"
        "t.make_tracing(t.NO_TRACING, 'x'); "
        "print(any(each.startswith('opentelemetry') for each in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_collector_without_the_packages_is_a_mistake_in_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"arborcast\[otel\]"):
        make_tracing(TracingSettings(endpoint="http://127.0.0.1:1/v1/traces"), "gateway")


def test_only_what_is_recorded_counts() -> None:
    assert sampled(["", PARENT, UNSAMPLED]) == [PARENT]


class TestSpans:
    @pytest.fixture(autouse=True)
    def _exporter(self) -> None:
        pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self.exporter = InMemorySpanExporter()
        self.processor = SimpleSpanProcessor(self.exporter)

    def test_a_span_belongs_to_its_parent_and_hands_its_own_context_on(self) -> None:
        tracing = Tracing("gateway", 0.0, self.processor)
        with tracing.span("Notify", "server", PARENT) as outer, tracing.span("append", "producer", outer.traceparent):
            pass
        append, notify = self.exporter.get_finished_spans()
        assert (notify.name, append.name) == ("Notify", "append")
        assert notify.resource.attributes["service.name"] == "arborcast-gateway"
        assert notify.parent is not None
        assert f"{notify.parent.span_id:016x}" == "b" * 16
        assert append.parent is not None
        assert append.parent.span_id == notify.context.span_id
        assert trace_of(outer.traceparent) == f"{notify.context.trace_id:032x}" == "a" * 32

    @pytest.mark.parametrize(("ratio", "parent", "recorded"), [(0.0, "", 0), (1.0, "", 1), (1.0, UNSAMPLED, 0)])
    def test_a_publisher_decides_and_where_there_is_none_chance(self, ratio: float, parent: str, recorded: int) -> None:
        tracing = Tracing("gateway", ratio, self.processor)
        with tracing.span("Notify", "server", parent) as span:
            pass
        assert len(self.exporter.get_finished_spans()) == recorded
        assert span.traceparent == parent or recorded

    def test_what_goes_wrong_is_in_the_span(self) -> None:
        tracing = Tracing("gateway", 1.0, self.processor)
        with pytest.raises(OSError, match="gone"), tracing.span("Notify", "server"):
            raise OSError("gone")
        (span,) = self.exporter.get_finished_spans()
        assert span.attributes == {"error.type": "OSError"}
        assert not span.status.is_ok

    def test_the_real_exporter_is_made(self) -> None:
        tracing = make_tracing(TracingSettings(endpoint="http://127.0.0.1:9/v1/traces"), "dispatch")
        assert tracing is not None
        tracing.close()

    def test_a_collector_that_is_away_is_told_once_and_holds_no_stop(self, caplog: pytest.LogCaptureFixture) -> None:
        tracing = make_tracing(TracingSettings(endpoint="http://127.0.0.1:9/v1/traces", ratio=1.0), "dispatch")
        assert tracing is not None
        tracing.begin("push", "client").end()
        tracing.close()
        wait_until(lambda: all(each.name != "tracing-close" for each in threading.enumerate()))
        assert len([each for each in caplog.records if each.name.startswith("opentelemetry")]) == 1
