"""OpenTelemetry spans; `tracing.endpoint` is a collector with OTLP over HTTP.

Off by default: `make_tracing` returns None, and OpenTelemetry is not loaded. The packages are an optional extra
(`pip install 'arborcast[otel]'`).

The gateway decides which notifications have spans: those of publishers whose trace is sampled, and a share
(`tracing.ratio`) of those without a trace context. Later steps use the trace context in the record, so a trace is
complete or absent.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from arborcast.core.errors import ConfigError
from arborcast.core.log_limit import LogLimit
from arborcast.core.settings import setting
from arborcast.core.threads import start_thread

HEADER = "traceparent"

# Without zeros as ids. Versions after 00 may append fields after the flags; the fields before keep their meaning.
_FORM = re.compile(r"(?!ff|00.{54})[0-9a-f]{2}-((?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2})(?:-.*)?")

_LONGEST = 512


def read_traceparent(text: str) -> str:
    """The trace context (W3C Trace Context, version 00) in a `traceparent` header, in lower case. Empty for an invalid
    header, which is no reason to refuse a notification. `tracestate` is not stored: it is for the systems that wrote
    it, and a push may come long after their trace."""
    text = text.strip(" \t")
    match = _FORM.fullmatch(text) if len(text) <= _LONGEST else None
    return "" if match is None else f"00-{match[1]}"


def trace_of(traceparent: str) -> str:
    """The id of the trace; empty for none."""
    return traceparent[3:35]


def shared(traceparents: Iterable[str]) -> str:
    """The context of a push with several notifications: the first context, if all contexts belong to one trace; else
    empty, since the push would add some notifications to a wrong trace."""
    first = ""
    for each in traceparents:
        if each and not first:
            first = each
        elif each and trace_of(each) != trace_of(first):
            return ""
    return first


Kind = Literal["server", "producer", "client"]

Facts = Mapping[str, str | int]

# The maximum wait for the collector at a stop.
_CLOSE_S = 1.0

# OpenTelemetry's loggers for failures of the export.
_EXPORTING = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.common.http",
    "opentelemetry.sdk._shared_internal",
)

# The interval of log lines about an unavailable collector.
_LOG_INTERVAL_S = 600.0


@dataclass(frozen=True)
class TracingSettings:
    """OpenTelemetry spans."""

    endpoint: str = setting(
        "", "OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces; empty: no spans. Needs the extra otel."
    )
    ratio: float = setting(
        0.01, "Share of requests without a trace context that start a trace.", minimum=0.0, maximum=1.0
    )


NO_TRACING = TracingSettings()


class Span:
    """A running span, or only a trace context to propagate if the trace is not sampled."""

    def __init__(self, span: Any | None, traceparent: str) -> None:
        self._span = span
        self.traceparent = traceparent
        """The trace context for child spans; empty for none."""

    def end(self, error: str = "", facts: Facts | None = None) -> None:
        """End the span. `error` is the class of the failure; empty for success."""
        if self._span is None:
            return
        from opentelemetry.trace import StatusCode

        for name, value in (facts or {}).items():
            self._span.set_attribute(name, value)
        if error:
            self._span.set_attribute("error.type", error)
            self._span.set_status(StatusCode.ERROR, error)
        self._span.end()


class Tracing:
    """The spans of one process. `processor` is a span processor of OpenTelemetry."""

    def __init__(self, part: str, ratio: float, processor: Any) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased

        root = ALWAYS_ON if ratio >= 1 else TraceIdRatioBased(ratio)
        self._provider = TracerProvider(
            sampler=ParentBased(root),
            resource=Resource.create({"service.name": f"arborcast-{part}"}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("arborcast")

    def begin(
        self, name: str, kind: Kind, parent: str = "", links: Sequence[str] = (), facts: Facts | None = None
    ) -> Span:
        """Begin a span. `parent` and `links` are trace contexts, `facts` its first attributes."""
        from opentelemetry.trace import Link, SpanKind

        span = self._tracer.start_span(
            name,
            context=_context(parent) if parent else None,
            kind=SpanKind[kind.upper()],
            attributes=facts,
            links=[Link(_span_context(each)) for each in links],
        )
        if not span.is_recording():
            return Span(None, parent)
        own = span.get_span_context()
        return Span(span, f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}")

    @contextmanager
    def span(self, name: str, kind: Kind, parent: str = "", facts: Facts | None = None) -> Iterator[Span]:
        """A span around a block; an exception is recorded as its error and raised."""
        span = self.begin(name, kind, parent, facts=facts)
        try:
            yield span
        except BaseException as error:
            span.end(type(error).__name__)
            raise
        span.end()

    def close(self) -> None:
        """Send the remaining spans within a short time: an unavailable collector must not delay a stop."""
        start_thread("tracing-close", self._provider.shutdown).join(_CLOSE_S)


def make_tracing(settings: TracingSettings, part: str, ratio: float | None = None) -> Tracing | None:
    """The spans of this part; None without a collector. Raises ConfigError if OpenTelemetry is not installed."""
    if not settings.endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(
            f"tracing.endpoint is set, but OpenTelemetry is not installed: pip install 'arborcast[otel]' ({error})"
        ) from error
    exporter = OTLPSpanExporter(endpoint=settings.endpoint)
    limit = LogLimit(1, _LOG_INTERVAL_S)
    for name in _EXPORTING:
        logging.getLogger(name).filters[:] = [limit]
    return Tracing(part, settings.ratio if ratio is None else ratio, BatchSpanProcessor(exporter))


def sampled(traceparents: Sequence[str]) -> list[str]:
    return [each for each in traceparents if each and int(each[-2:], 16) & 1]


def _context(traceparent: str) -> Any:
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    # An explicit base: the thread's current context belongs to other work.
    return set_span_in_context(NonRecordingSpan(_span_context(traceparent)), Context())


def _span_context(traceparent: str) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags

    _, trace, span, flags = traceparent.split("-")
    return SpanContext(int(trace, 16), int(span, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
