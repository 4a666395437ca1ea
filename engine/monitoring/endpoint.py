"""A small HTTP server for pages that are made on request."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import psutil

from arborcast.core.backoff import Backoff
from arborcast.core.errors import ConfigError
from arborcast.core.security.web_pages import PageRule
from arborcast.core.telemetry.metrics import CONTENT_TYPE, Registry
from arborcast.core.threads import Service, start_thread
from arborcast.engine.settings.stack import MetricsSettings

if TYPE_CHECKING:
    # Loads Spark, which gateway and supervisor do not need.
    from arborcast.dispatch.monitoring.metrics import EndpointFigures, JobMetrics


def declare_process(metrics: Registry) -> None:
    """Memory, CPU, threads, descriptors of this process."""
    process = psutil.Process()
    started = process.create_time()
    metrics.gauge("process_resident_memory_bytes", "Resident memory.", lambda: process.memory_info().rss)
    metrics.counted("process_cpu_seconds_total", "CPU time used.", lambda: sum(process.cpu_times()[:2]))
    metrics.gauge("process_start_time_seconds", "When the process started, since the epoch.", lambda: started)
    metrics.gauge("process_threads", "Threads.", process.num_threads)
    metrics.gauge("process_open_fds", "Open file descriptors.", process.num_fds)


logger = logging.getLogger(__name__)

_TEXT = "text/plain; charset=utf-8"

# Timeouts of a client's whole request, and of its answer.
_PATIENCE_S = 3.0
_ANSWER_S = 30.0

# Maximum number of connections; a new one closes the longest idle one.
_MOST_CONNECTIONS = 64

# Interval of the check for connections past their deadline.
_SWEEP_S = 0.5


@dataclass(frozen=True)
class Page:
    """A page: its content type and its function. `query` renders it for a query's parameters and raises ValueError for
    invalid ones. A page without it ignores the query."""

    content_type: str
    make: Callable[[], bytes]
    render_query: Callable[[Mapping[str, str]], bytes] | None = None


class Endpoint:
    """Serves pages by path in daemon threads. Each connection has a thread during its request and answer. Pages are
    rendered one at a time: frequent requests must not take more than one thread's CPU from the engine."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Page], name: str) -> None:
        """Serves at once. Raises ConfigError if the port is in use."""
        try:
            self._server = _Server((host, port), _handler(dict(pages), PageRule(host)))
        except OSError as error:
            raise ConfigError(f"metrics cannot be served on {host} port {port}: {error.strerror or error}") from error
        self._thread = start_thread(name, self._server.serve_forever, _SWEEP_S)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingTCPServer):  # HTTPServer looks up the host name, which may take seconds without a name server
    daemon_threads = True
    allow_reuse_address = True  # connections of a killed process keep its port for a minute

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._lock = threading.Lock()
        # Deadline of the current step of each connection, its request or its answer; the newest is last.
        self._due: dict[socket.socket, float] = {}
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Called for each connection."""
        with self._lock:
            if len(self._due) >= _MOST_CONNECTIONS:
                self._cut(next(iter(self._due)))
            self._due[request] = time.monotonic() + _PATIENCE_S
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Called at the end of a connection."""
        with self._lock:
            self._due.pop(request, None)
        super().shutdown_request(request)

    def complete(self, connection: socket.socket) -> None:
        """The request on this connection is complete."""
        with self._lock:
            if self._due.pop(connection, None) is not None:
                self._due[connection] = time.monotonic() + _ANSWER_S

    def service_actions(self) -> None:
        """Called every _SWEEP_S: a socket timeout would not end a client that sends a byte now and then."""
        now = time.monotonic()
        with self._lock:
            for connection in [each for each, due in self._due.items() if due < now]:
                self._cut(connection)

    def _cut(self, connection: socket.socket) -> None:
        """Close a connection: its thread reads the end."""
        self._due.pop(connection, None)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that disconnect early are no error."""


def _handler(pages: Mapping[str, Page], rule: PageRule) -> type[BaseHTTPRequestHandler]:
    one_at_a_time = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        timeout = _PATIENCE_S

        def do_GET(self) -> None:
            if isinstance(self.server, _Server):
                self.server.complete(self.connection)
            refusal = rule.refusal("GET", {name.lower(): value for name, value in self.headers.items()})
            if refusal:
                self._answer(403, _TEXT, f"{refusal}\n".encode())
            else:
                self._answer(*self._made())

        def _made(self) -> tuple[int, str, bytes]:
            path, _, query = self.path.partition("?")
            page = pages.get(path)
            if page is None:
                return 404, _TEXT, ("here are: " + ", ".join(pages) + "\n").encode()
            render_query = page.render_query if query else None
            try:
                with one_at_a_time:
                    return 200, page.content_type, render_query(dict(parse_qsl(query))) if render_query else page.make()
            except Exception as error:
                if render_query and isinstance(error, ValueError):
                    return 400, _TEXT, f"this query cannot be read: {error}\n".encode()
                logger.exception("the page %s cannot be rendered", self.path[:100])
                return 500, _TEXT, b"this page cannot be made now; the log has the reason\n"

        def _answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Scrapes are not logged."""

    return Handler


_SLOWEST = 20

# Interval of attempts to listen on a port that is in use.
_PAUSE_S = 5.0


def serve_job_when_free(metrics: JobMetrics, settings: MetricsSettings, pause_s: float = _PAUSE_S) -> None:
    """Begin to serve, now or when the port becomes free: a job without this endpoint still delivers."""

    def serve() -> None:
        endpoint = serve_job(metrics, settings)
        logger.info("metrics at http://%s:%d/metrics", settings.host, endpoint.port)

    Service("metrics-port", serve, backoff=Backoff(pause_s, pause_s), what="the endpoint of metrics").start()


def serve_job(metrics: JobMetrics, settings: MetricsSettings) -> Endpoint:
    """Begin to serve. Raises ConfigError if the port is in use."""
    declare_process(metrics.registry)
    pages = {
        "/metrics": Page(CONTENT_TYPE.decode(), lambda: metrics.registry.text().encode()),
        "/status.json": Page("application/json", lambda: _status(metrics)),
    }
    return Endpoint(settings.host, settings.job_port, pages, "metrics-http")


def _status(metrics: JobMetrics) -> bytes:
    failing, number = metrics.failing()
    return json.dumps(
        {
            "slowest_endpoints": [_figures(one) for one in metrics.slowest(_SLOWEST)],
            "endpoints": [_figures(one) for one in metrics.endpoints()],
            "failing_endpoints": [
                _figures(one.figures)
                | {
                    "breaker": one.health.breaker,
                    "failures": one.health.failures,
                    "failing_since_ms": one.health.failing_since_ms,
                    "probe_at_ms": one.health.probe_at_ms,
                }
                for one in failing
            ],
            "failing": number,
        }
    ).encode()


def _figures(one: EndpointFigures) -> dict[str, object]:
    shown = dataclasses.asdict(one) | {"mean_s": one.mean_s, "p99_s": one.p99_s}
    del shown["buckets"]
    return shown
