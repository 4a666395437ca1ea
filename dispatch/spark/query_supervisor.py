"""Keeping a streaming query running."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from arborcast.core.backoff import Backoff
from arborcast.core.threads import start_thread


class StopRequested(Exception):
    """Raised to end a query at a safe point: at the beginning of a batch, or between two of its rounds."""


class StopGate:
    """Admits batches until it is closed, and counts the running ones.

    A stop within a batch would cut off pushes whose outcomes are never written. So the gate is closed first, and the
    query stops when no batch is running.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._closed = False
        self._inside = 0

    @property
    def closed(self) -> bool:
        return self._closed

    @contextmanager
    def batch(self) -> Iterator[None]:
        """A context around a batch. Raises StopRequested once the gate is closed."""
        with self._condition:
            if self._closed:
                raise StopRequested
            self._inside += 1
        try:
            yield
        finally:
            with self._condition:
                self._inside -= 1
                self._condition.notify_all()

    def raise_if_closed(self) -> None:
        """Call between two rounds of a batch. Raises StopRequested once the gate is closed."""
        if self._closed:
            raise StopRequested

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def wait_closed(self, timeout_s: float | None = None) -> bool:
        """Wait until the gate is closed; returns whether it is."""
        with self._condition:
            return self._condition.wait_for(lambda: self._closed, timeout_s)

    def wait_empty(self, timeout_s: float | None = None) -> bool:
        """Wait until no batch is running, for this time or, without one, until the gate is closed. Returns whether none
        is."""
        with self._condition:
            self._condition.wait_for(lambda: not self._inside or (timeout_s is None and self._closed), timeout_s)
            return not self._inside


logger = logging.getLogger(__name__)

BACKOFF = Backoff(1.0, 15.0)

# After this time a query is healthy: its next failure is the first of a series.
HEALTHY_S = 60.0

# A query with a backlog is ready after this time.
CATCH_UP_S = 5.0

CHECK_S = 0.2
"""The interval at which the waits of a start look for a closed gate."""

# After this many consecutive failures the process itself may be broken, and its supervisor restarts it.
MAX_FAILURES = 10


class QuerySupervisor:
    """Starts a query again when it fails (Kafka unavailable for long, or a task that failed too often), in a thread,
    until the gate closes. After MAX_FAILURES in a row the gate is closed and `gave_up` is true."""

    def __init__(
        self,
        name: str,
        start: Callable[[], StreamingQuery],
        gate: StopGate,
        at_rest: Callable[[StreamingQuery], bool] | None = None,
        failed: Callable[[], object] = lambda: None,
    ) -> None:
        """`at_rest`: whether the query has caught up, and may be stopped. `failed` is called after each failure."""
        self._start = start
        self._at_rest = at_rest or waits_for_data
        self._failed = failed
        self._planned = False
        self._gate = gate
        self.query: StreamingQuery | None = None
        """The last started query."""
        self._running = threading.Event()
        self._thread: threading.Thread | None = None
        self.name = name
        self.failures = 0
        self.gave_up = False

    def start(self) -> None:
        self._thread = start_thread(f"keep-{self.name}", self._keep)

    def wait_running(self, timeout_s: float) -> bool:
        """Wait until the query runs and has caught up, for this time or until the gate closes; returns whether it
        runs."""
        deadline = time.monotonic() + timeout_s
        while not self._running.wait(min(CHECK_S, timeout_s)):
            if self._gate.closed or time.monotonic() >= deadline:
                return False
        if self.query is None:
            return False
        self._wait_at_rest(self.query, min(deadline - time.monotonic(), CATCH_UP_S))
        return True

    @contextmanager
    def planned_restart(self) -> Iterator[None]:
        """A context around the end of the query's work: at its exit the query is stopped and started again at once,
        and its end does not count as a failure."""
        self._planned, query = True, self.query
        try:
            yield
        except BaseException:
            self._planned = False
            raise
        if query is not None:
            query.stop()

    def stop(self, timeout_s: float) -> None:
        """Stop the query; the gate must be closed and empty. Returns when its thread has ended, or after the time."""
        if self.query is not None:
            try:
                self._wait_at_rest(self.query, timeout_s)
                self.query.stop()
            except PySparkException as error:
                logger.info("%s ended while it was being stopped: %s", self.name, error)
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _keep(self) -> None:
        while not self._gate.closed:
            started = time.monotonic()
            try:
                self.query = self._start()
                if self._gate.wait_closed(0):
                    # A stop may have been requested before this query existed.
                    self.query.stop()
                    return
                self._running.set()
                self.query.awaitTermination()
                reason = "it ended"
            except StreamingQueryException as error:
                reason = _first_lines(str(error))
            except Exception as error:
                reason = _reason(error)
            if self._gate.wait_closed(0):
                return
            if self._planned:
                self._planned = False
                continue
            self._failed()
            self.failures = 1 if time.monotonic() - started > HEALTHY_S else self.failures + 1
            if self.failures >= MAX_FAILURES:
                logger.error("%s failed %d times in a row, giving up: %s", self.name, self.failures, reason)
                self.gave_up = True
                self._gate.close()
                return
            pause = BACKOFF.after(self.failures)
            logger.warning("%s stopped; it is started again in %g s: %s", self.name, pause, reason)
            self._gate.wait_closed(pause)

    def _wait_at_rest(self, query: StreamingQuery, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while query.isActive and not self._at_rest(query) and time.monotonic() < deadline:
            time.sleep(0.005)


def waits_for_data(query: StreamingQuery) -> bool:
    """Whether a query in batches waits for data. After the sink Spark records the end of the batch; a stop before that
    repeats the batch."""
    return str(query.status["message"]).startswith("Waiting")


def _reason(error: Exception) -> str:
    # Py4J's text has the call on its first line, and then the cause: reports of a start have one line.
    cause = str(error).partition("\n: ")[2]
    return _first_lines(cause or f"{type(error).__name__}: {error}")


def _first_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[:12])
