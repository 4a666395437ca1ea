"""OpenTelemetry spans, where they are wanted: `tracing.endpoint` names a collector that speaks OTLP over HTTP.

Off by default, and then nothing of it is loaded: `make_tracing` gives None, and who has None does nothing. The
packages are an optional extra (`pip install 'arborcast[otel]'`).

Which notifications have spans is decided once, at the gateway: those of publishers whose own trace is sampled, and a
share (`tracing.ratio`) of those that come without any. All that follows goes by the trace context in their records, so
a trace is whole or not there.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from arborcast.core.errors import ConfigError
from arborcast.core.settings import setting
from arborcast.core.threads import start_thread

HEADER = "traceparent"

# Later versions may go on behind the flags; what stands before keeps its meaning.
_FORM = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<ids>(?P<trace>[0-9a-f]{32})-(?P<parent>[0-9a-f]{16})-[0-9a-f]{2})(?P<more>-.*)?"
)

_NO_TRACE = "0" * 32

_NO_PARENT = "0" * 16

_LONGEST = 512


def read_traceparent(text: str) -> str:
    """The trace context (W3C Trace Context, version 00) in a `traceparent` header, in lower case. Empty for an invalid
    one: a publisher's mistake in it is no reason to refuse a notification. `tracestate` is not stored: it is for the
    systems that wrote it, and a push may follow long after their trace."""
    text = text.strip(" \t")
    match = _FORM.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None or match["version"] == "ff" or (match["version"] == "00" and match["more"]):
        return ""
    if match["trace"] == _NO_TRACE or match["parent"] == _NO_PARENT:
        return ""
    return f"00-{match['ids']}"


def trace_of(traceparent: str) -> str:
    """The trace's id, empty for none."""
    return traceparent[3:35]


def is_sampled(traceparent: str) -> bool:
    """Whether the trace is one that is recorded."""
    return bool(int(traceparent[-2:], 16) & 1)


def shared(traceparents: Iterable[str]) -> str:
    """The context of a push that carries several notifications: the first one's, if all that have one are of the same
    trace; empty otherwise, because it would put the others into a trace that is not theirs."""
    first = ""
    for each in traceparents:
        if each and not first:
            first = each
        elif each and trace_of(each) != trace_of(first):
            return ""
    return first


Kind = Literal["server", "producer", "client"]

Facts = Mapping[str, str | int]

# How long a stop waits for the collector.
_CLOSE_S = 1.0

# The loggers of OpenTelemetry that speak of a collector.
_EXPORTING = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.common.http",
    "opentelemetry.sdk._shared_internal",
)

# How often the log says that the collector is away, however many attempts fail.
_TELL_S = 600.0


class _Seldom(logging.Filter):
    """Lets one line through, and then none for a while."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._next = clock()

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + _TELL_S
        return True


@dataclass(frozen=True)
class TracingSettings:
    """OpenTelemetry spans."""

    endpoint: str = setting(
        "",
        "OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces; empty: no spans. Needs the extra otel.",
    )
    ratio: float = setting(
        0.01,
        "Share of requests without a trace context that start a trace.",
        minimum=0.0,
        maximum=1.0,
    )


NO_TRACING = TracingSettings()


class Span:
    """Something that is under way. Without a span of OpenTelemetry it only hands its trace context on."""

    def __init__(self, span: Any | None, traceparent: str) -> None:
        self._span = span
        self.traceparent = traceparent
        """The context for what follows from it; empty for none."""

    def end(self, error: str = "", facts: Facts | None = None) -> None:
        """It is over; `error` is the class of what went wrong, empty when nothing did."""
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
    """The spans of one process. Made by `make_tracing`, or with an exporter of one's own (of OpenTelemetry)."""

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
        """The same around some statements; an exception is the span's error, and goes on."""
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
    """The spans of this part; None when none are wanted. Raises ConfigError when the packages are not there."""
    if not settings.endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(
            f"tracing.endpoint is set, and OpenTelemetry is not installed: pip install 'arborcast[otel]' ({error})"
        ) from error
    exporter = OTLPSpanExporter(endpoint=settings.endpoint)
    seldom = _Seldom()
    for name in _EXPORTING:
        logging.getLogger(name).filters[:] = [seldom]
    return Tracing(part, settings.ratio if ratio is None else ratio, BatchSpanProcessor(exporter))


def sampled(traceparents: Sequence[str]) -> list[str]:
    """Those of the contexts that are to have spans."""
    return [each for each in traceparents if each and is_sampled(each)]


def _context(traceparent: str) -> Any:
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    # A context of its own: what else goes on in this thread has nothing to do with it.
    return set_span_in_context(NonRecordingSpan(_span_context(traceparent)), Context())


def _span_context(traceparent: str) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags

    _, trace, span, flags = traceparent.split("-")
    return SpanContext(int(trace, 16), int(span, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
