"""Headers of traces, and exported spans. Without the extra `otel` the latter are skipped."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from arborcast.core.errors import ConfigError
from arborcast.core.telemetry.tracing import (
    NO_TRACING,
    Tracing,
    TracingSettings,
    make_tracing,
    read_traceparent,
    sampled,
    shared,
    trace_of,
)
from tests.support.waiting import wait_until

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
UNSAMPLED = PARENT[:-1] + "0"
COLLECTOR = "http://127.0.0.1:9/v1/traces"
"""An address where no process listens."""


@pytest.mark.parametrize(
    ("header", "kept"),
    [
        (PARENT, PARENT),
        (f" {PARENT}\t", PARENT),
        (UNSAMPLED, UNSAMPLED),
        # The known fields of a later version.
        (f"cc-{TRACE}-{SPAN}-01", PARENT),
        (f"cc-{TRACE}-{SPAN}-01-and-more", PARENT),
        # Headers that the recommendation calls invalid.
        ("", ""),
        (f"00-{TRACE}-{SPAN}-01-more", ""),
        (f"ff-{TRACE}-{SPAN}-01", ""),
        (f"00-{TRACE.upper()}-{SPAN}-01", ""),
        (f"00-{'0' * 32}-{SPAN}-01", ""),
        (f"00-{TRACE}-{'0' * 16}-01", ""),
        (f"00-{TRACE[:-1]}-{SPAN}-01", ""),
        (f"00-{TRACE}-{SPAN}-0", ""),
        (f"{PARENT}\r\nX-Evil: 1", ""),
        (f"cc-{TRACE}-{SPAN}-01-" + "x" * 1000, ""),
    ],
)
def test_valid_and_invalid_headers(header: str, kept: str) -> None:
    assert read_traceparent(header) == kept


def test_messages_of_one_trace_share_a_context() -> None:
    other_span = f"00-{TRACE}-{SPAN[::-1]}-01"
    other_trace = f"00-{TRACE[::-1]}-{SPAN}-01"
    assert trace_of(PARENT) == TRACE
    assert shared([]) == shared(["", ""]) == ""
    assert shared(["", PARENT, "", other_span]) == PARENT
    assert shared([PARENT, other_trace]) == shared([PARENT, "", other_trace, PARENT]) == ""
    assert sampled(["", PARENT, UNSAMPLED]) == [PARENT]


@pytest.mark.slow
def test_without_a_collector_no_package_is_loaded() -> None:
    assert make_tracing(NO_TRACING, "gateway") is None
    code = (
        "import sys, ingest.http.app, dispatch.hot.pump, core.telemetry.tracing as t\n"
        "t.make_tracing(t.NO_TRACING, 'x'); "
        "print(any(each.startswith('opentelemetry') for each in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_collector_without_the_packages_is_a_settings_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"arborcast\[otel\]"):
        make_tracing(TracingSettings(endpoint=COLLECTOR), "gateway")


@pytest.mark.slow
class TestSpans:
    @pytest.fixture(autouse=True)
    def _exporter(self) -> None:
        pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self.exporter = InMemorySpanExporter()
        self.processor = SimpleSpanProcessor(self.exporter)

    def test_a_span_has_its_parent_and_propagates_its_context(self) -> None:
        tracing = Tracing("gateway", 0.0, self.processor)
        with (
            pytest.raises(OSError, match="away"),
            tracing.span("Notify", "server", PARENT) as outer,
            tracing.span("append", "producer", outer.traceparent),
        ):
            raise OSError("away")
        append, notify = self.exporter.get_finished_spans()
        assert (notify.name, append.name) == ("Notify", "append")
        assert notify.resource.attributes["service.name"] == "arborcast-gateway"
        assert notify.parent is not None
        assert f"{notify.parent.span_id:016x}" == SPAN
        assert append.parent is not None
        assert append.parent.span_id == notify.context.span_id
        assert trace_of(outer.traceparent) == f"{notify.context.trace_id:032x}" == TRACE
        assert append.attributes == {"error.type": "OSError"}
        assert not append.status.is_ok

    @pytest.mark.parametrize(("ratio", "parent", "recorded"), [(0.0, "", 0), (1.0, "", 1), (1.0, UNSAMPLED, 0)])
    def test_sampling_is_the_publisher_s_decision_or_random(self, ratio: float, parent: str, recorded: int) -> None:
        tracing = Tracing("gateway", ratio, self.processor)
        with tracing.span("Notify", "server", parent) as span:
            pass
        assert len(self.exporter.get_finished_spans()) == recorded
        assert span.traceparent == parent or recorded

    def test_an_absent_collector_is_logged_once_and_delays_no_stop(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "1")  # for all attempts
        tracing = make_tracing(TracingSettings(endpoint=COLLECTOR, ratio=1.0), "dispatch")
        assert tracing is not None
        tracing.begin("push", "client").end()
        tracing.close()
        wait_until(lambda: all(each.name != "tracing-close" for each in threading.enumerate()))
        calls = [(each.pathname, each.lineno) for each in caplog.records if each.name.startswith("opentelemetry")]
        assert calls
        assert len(calls) == len({*calls}), "each line once"
