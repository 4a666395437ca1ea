from __future__ import annotations

import logging
import threading

import pytest

from arborcast.core.backoff import Backoff
from arborcast.core.errors import InfrastructureError
from arborcast.dispatch.spark import query_supervisor
from arborcast.dispatch.spark.query_supervisor import QuerySupervisor, StopGate


class PlayedQuery:
    """A query that dies when told to."""

    isActive = True
    status = {"message": "Waiting for data to arrive"}  # noqa: RUF012

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._error: Exception | None = None

    def awaitTermination(self) -> None:
        assert self._ended.wait(120)
        if self._error:
            raise self._error

    def die(self) -> None:
        self._error = RuntimeError("Kafka was away")
        self._ended.set()

    def stop(self) -> None:
        self._ended.set()


def test_query_that_dies_is_started_again_until_the_gate_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_supervisor, "BACKOFF", Backoff(0.01, 0.01))
    gate = StopGate()
    queries: list[PlayedQuery] = []
    second = threading.Event()

    def start() -> PlayedQuery:
        queries.append(PlayedQuery())
        if len(queries) == 1:
            queries[0].die()
        else:
            second.set()
        return queries[-1]

    kept = QuerySupervisor("test", start, gate)  # type: ignore[arg-type]
    kept.start()
    assert second.wait(120)
    assert kept.wait_running(120)
    gate.close()
    kept.stop(120)

    assert len(queries) == 2
    assert kept.failures == 1
    assert not kept.gave_up


def test_gives_up_and_closes_the_gate_when_nothing_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_supervisor, "BACKOFF", Backoff(0.0, 0.0))
    gate = StopGate()
    tries = []

    def start() -> PlayedQuery:
        tries.append(1)
        raise RuntimeError("no")

    kept = QuerySupervisor("test", start, gate)  # type: ignore[arg-type]
    kept.start()

    assert gate.wait_closed(120)
    kept.stop(120)
    assert kept.gave_up
    assert len(tries) == query_supervisor.MAX_FAILURES


def test_the_reason_of_a_failure_in_spark_begins_with_its_cause(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(query_supervisor, "BACKOFF", Backoff(0.0, 0.0))
    gate = StopGate()

    def start() -> PlayedQuery:
        # The text of a Py4JJavaError.
        raise RuntimeError('An error occurred while calling o349.start.\n: java.io.IOException: no "chmod"\n\tat java')

    kept = QuerySupervisor("push", start, gate)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        kept.start()
        assert gate.wait_closed(120)
        kept.stop(120)
    assert 'push stopped; it is started again in 0 s: java.io.IOException: no "chmod"\n\tat java' in caplog.text


def test_a_planned_restart_that_fails_leaves_the_next_failure_one() -> None:
    gate = StopGate()
    queries: list[PlayedQuery] = []
    started = threading.Semaphore(0)

    def start() -> PlayedQuery:
        queries.append(PlayedQuery())
        started.release()
        return queries[-1]

    kept = QuerySupervisor("test", start, gate)  # type: ignore[arg-type]
    kept.start()
    assert started.acquire(timeout=120)
    assert kept.wait_running(120)
    with pytest.raises(InfrastructureError), kept.planned_restart():
        raise InfrastructureError("a worker does not end")
    queries[-1].die()
    assert started.acquire(timeout=120)
    gate.close()
    kept.stop(120)
    assert kept.failures == 1


def test_a_planned_restart_is_no_failure_and_waits_for_nothing() -> None:
    gate = StopGate()
    queries: list[PlayedQuery] = []
    started = threading.Semaphore(0)

    def start() -> PlayedQuery:
        queries.append(PlayedQuery())
        started.release()
        return queries[-1]

    kept = QuerySupervisor("test", start, gate)  # type: ignore[arg-type]
    kept.start()
    for way in ("stopped at the end", "dies before"):
        assert started.acquire(timeout=120)
        assert kept.wait_running(120)
        with kept.planned_restart():
            if way == "dies before":
                queries[-1].die()
    assert started.acquire(timeout=120)
    gate.close()
    kept.stop(120)
    assert len(queries) == 3
    assert kept.failures == 0
