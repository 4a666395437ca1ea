"""Queries that fail, are restarted or stopped, and the gate for their batches."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from arborcast.core.backoff import Backoff
from arborcast.core.errors import InfrastructureError
from arborcast.dispatch.spark import query_supervisor
from arborcast.dispatch.spark.query_supervisor import QuerySupervisor, StopGate, StopRequested


def test_a_closed_gate_waits_for_its_batch_and_begins_none() -> None:
    gate = StopGate()
    inside, leave = threading.Event(), threading.Event()

    def batch() -> None:
        with gate.batch():
            inside.set()
            leave.wait(120)

    thread = threading.Thread(target=batch)
    thread.start()
    assert inside.wait(120)
    gate.close()
    assert not gate.wait_empty(0.05)
    leave.set()
    assert gate.wait_empty(120)
    thread.join(120)
    with pytest.raises(StopRequested), gate.batch():
        pytest.fail("a batch began behind a closed gate")


def test_a_failed_batch_leaves_the_gate() -> None:
    gate = StopGate()
    with pytest.raises(ZeroDivisionError), gate.batch():
        _ = 1 / 0
    assert gate.wait_empty(0)


class FakeQuery:
    """A query that is ended by the test."""

    isActive = True
    status = {"message": "Waiting for data to arrive"}  # noqa: RUF012

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._error: Exception | None = None

    def awaitTermination(self) -> None:
        assert self._ended.wait(120)
        if self._error:
            raise self._error

    def fail(self) -> None:
        self._error = RuntimeError("Kafka was unavailable")
        self._ended.set()

    def stop(self) -> None:
        self._ended.set()


class Supervised:
    """A supervisor of fake queries; each start raises `error`."""

    def __init__(self, error: Exception | None = None) -> None:
        self.gate = StopGate()
        self.queries: list[FakeQuery] = []
        self.starts = 0
        self.failures: list[None] = []
        self._error = error
        self._started = threading.Semaphore(0)
        start: Any = self._start
        self.supervisor = QuerySupervisor("push", start, self.gate, failed=lambda: self.failures.append(None))
        self.supervisor.start()

    def _start(self) -> FakeQuery:
        self.starts += 1
        if self._error:
            raise self._error
        self.queries.append(FakeQuery())
        self._started.release()
        return self.queries[-1]

    def running(self) -> FakeQuery:
        """The next query."""
        assert self._started.acquire(timeout=120)
        assert self.supervisor.wait_running(120)
        return self.queries[-1]

    def stop(self) -> None:
        self.gate.close()
        self.supervisor.stop(120)


def test_a_query_is_started_again_until_the_gate_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_supervisor, "BACKOFF", Backoff(0.01, 0.01))
    supervised = Supervised()
    supervised.running().fail()
    supervised.running()
    supervised.stop()
    assert (len(supervised.queries), supervised.supervisor.failures, len(supervised.failures)) == (2, 1, 1)
    assert not supervised.supervisor.gave_up


def test_the_supervisor_stops_and_closes_the_gate(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(query_supervisor, "BACKOFF", Backoff(0.0, 0.0))
    # The text of a Py4JJavaError.
    text = 'An error occurred while calling o349.start.\n: java.io.IOException: no "chmod"\n\tat java'
    with caplog.at_level(logging.WARNING):
        supervised = Supervised(RuntimeError(text))
        assert supervised.gate.wait_closed(120)
        supervised.stop()
    assert supervised.supervisor.gave_up
    assert supervised.starts == len(supervised.failures) == query_supervisor.MAX_FAILURES
    assert 'push stopped; it is started again in 0 s: java.io.IOException: no "chmod"\n\tat java' in caplog.text


def test_a_wait_for_the_first_query_ends_with_the_gate() -> None:
    gate = StopGate()
    supervisor = QuerySupervisor("push", FakeQuery, gate)  # type: ignore[arg-type]  # a fake
    assert not supervisor.wait_running(0.0)
    gate.close()
    assert not supervisor.wait_running(3_600.0)


def test_a_planned_restart_is_no_failure() -> None:
    supervised = Supervised()
    for fails in (False, True):
        query = supervised.running()
        with supervised.supervisor.planned_restart():
            if fails:
                query.fail()
    query = supervised.running()
    assert (len(supervised.queries), supervised.supervisor.failures) == (3, 0)
    with pytest.raises(InfrastructureError), supervised.supervisor.planned_restart():
        raise InfrastructureError("a worker does not end")
    query.fail()
    supervised.running()
    supervised.stop()
    assert supervised.supervisor.failures == len(supervised.failures) == 1, "after a failed planned restart"
