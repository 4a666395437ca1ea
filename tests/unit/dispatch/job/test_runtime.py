"""The job's heartbeat, and the tasks that keep its workers warm."""

from __future__ import annotations

import logging
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.dispatch.job import runtime
from arborcast.dispatch.job.heartbeat import PATIENCE_WITH_TASKS, Heartbeat
from arborcast.dispatch.job.runtime import DispatchJob
from arborcast.dispatch.monitoring.metrics import JobMetrics
from arborcast.dispatch.realtime.mode_controller import ModeController
from arborcast.dispatch.spark.query_supervisor import StopGate

LIMIT_S = 30.0


class Job:
    """A job with a heartbeat."""

    def __init__(self) -> None:
        self.rounds = self.jvm_checks = self.beats = 0
        self.jvm_ends = False
        self.heartbeat = Heartbeat(self._check_jvm, lambda: self.rounds, LIMIT_S, None)

    def _check_jvm(self) -> None:
        self.jvm_checks += 1
        if self.jvm_ends:
            raise ConnectionError("the JVM has ended")

    def beat(self) -> None:
        self.beats += 1


def test_heartbeats_require_redelivery_and_jvm(caplog: pytest.LogCaptureFixture) -> None:
    job = Job()
    job.heartbeat.check(0.0)
    job.heartbeat.check(10_000.0)
    assert (job.jvm_checks, job.beats) == (2, 0), "no heartbeat and no limit during a start"
    job.heartbeat.beat = job.beat
    job.heartbeat.check(10_002.0)
    assert (job.jvm_checks, job.beats) == (3, 1)

    job, patience_s = Job(), LIMIT_S * PATIENCE_WITH_TASKS
    job.heartbeat.beat = job.beat
    with caplog.at_level(logging.WARNING):
        for now, beats in ((0.0, 1), (patience_s - 1, 2), (patience_s, 2), (patience_s + 2, 2)):
            job.heartbeat.check(now)
            assert job.beats == beats, "no round of the redelivery"
    assert len(caplog.records) == 1, "logged once"
    job.rounds += 1
    job.heartbeat.check(patience_s + 4)
    assert job.beats == 3

    job.jvm_ends = True
    with pytest.raises(ConnectionError):
        job.heartbeat.check(patience_s + 6)
    assert job.beats == 3


class TaskFailed(Exception):
    """Like py4j's exception, no exception of pyspark."""


def test_a_failed_keep_warm_task_does_not_end_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, tries = StopGate(), 0

    def fail(_: object) -> None:
        nonlocal tries
        tries += 1
        if tries == 2:
            gate.close()
        raise TaskFailed("Job aborted due to stage failure: Task 0 in stage 7.0 failed 4 times")

    monkeypatch.setattr(runtime, "_KEEP_WARM_S", 0.0)
    monkeypatch.setattr(runtime, "empty_frame", lambda spark, partitions: SimpleNamespace(foreachPartition=fail))
    job: Any = SimpleNamespace(_gate=gate, _spark=None, modes=SimpleNamespace(mode="batch"))

    DispatchJob._keep_warm(cast(DispatchJob, job))

    assert tries == 2


def test_a_stop_ends_a_start_that_reads_parked_deliveries(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, stopping, events = StopGate(), threading.Event(), list[str]()

    def begin_stop(_: float) -> None:
        events.append("stop")
        stopping.set()

    def read(_: float) -> None:
        stopping.wait()
        raise InfrastructureError("the redelivery stops")

    redeliverer = SimpleNamespace(start=read, begin_stop=begin_stop)
    hot = SimpleNamespace(start=lambda: events.append("query"), gave_up=False)
    modes = SimpleNamespace(open=lambda: None)
    control = SimpleNamespace(ensure_created=lambda: None)
    job: Any = SimpleNamespace(_control=control, _gate=gate, _hot=hot, modes=modes)
    job._redeliverer, job._warm_up, job._stop = redeliverer, gate.close, lambda: events.append("end")
    job._open = lambda: DispatchJob._open(cast(DispatchJob, job))
    assert DispatchJob.run(cast(DispatchJob, job), lambda: events.append("ready"))
    assert events == ["stop", "end"]


def test_a_dead_worker_of_a_run_counts_as_a_failure() -> None:
    metrics, ended = JobMetrics(), list[str]()
    listener = SimpleNamespace(missing=lambda: "a worker has died", end_workers=lambda: ended.append("workers"))
    supervisor = SimpleNamespace(planned_restart=lambda: nullcontext())
    modes: Any = SimpleNamespace(mode="realtime", _lock=nullcontext(), _listener=listener, supervisor=supervisor)
    modes._parts = SimpleNamespace(gate=StopGate(), metrics=metrics)
    ModeController._restart_if_required(modes, 1)
    assert ended == ["workers"]
    assert "arborcast_dispatch_failed_batches_total 1" in metrics.registry.text()


def test_a_wait_for_the_workers_ends_with_the_gate() -> None:
    gate, listener = StopGate(), SimpleNamespace(wait_ready=lambda timeout_s: False)
    modes: Any = SimpleNamespace(mode="realtime", _listener=listener, _parts=SimpleNamespace(gate=gate))
    assert not ModeController.wait_ready(modes, 0.0)
    gate.close()
    assert not ModeController.wait_ready(modes, 3_600.0)
    modes.mode = "batch"
    assert ModeController.wait_ready(modes, 0.0)


@pytest.mark.parametrize("closes", [False, True])
def test_a_start_that_takes_long_becomes_ready_nevertheless(closes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash with a backlog the query may start minutes later, beside the other services."""
    gate, events, running = StopGate(), list[str](), iter([False, False, not closes])

    def step(name: str) -> SimpleNamespace:
        return SimpleNamespace(start=lambda: events.append(name))

    def wait_running(timeout_s: float) -> bool:
        events.append(f"waited {timeout_s:g} s")
        if len(events) == 5 and closes:
            gate.close()
        return next(running)

    query = SimpleNamespace(start=lambda: None, wait_running=wait_running, gave_up=False)
    modes = SimpleNamespace(open=lambda: None, watch=lambda: None, wait_ready=lambda timeout_s: True)
    control = SimpleNamespace(ensure_created=lambda: None)
    job: Any = SimpleNamespace(_control=control, _gate=gate, _hot=query, modes=modes)
    job._open = job._stop = job._keep_warm = lambda: None
    job._events, job._deadlines, job._recording = step("events"), step("deadlines"), step("recording")
    job._delivers = lambda timeout_s: DispatchJob._delivers(cast(DispatchJob, job), timeout_s)
    assert DispatchJob.run(cast(DispatchJob, job), lambda: events.append("ready"))
    late = ["waited 1 s"] if closes else ["waited 1 s", "waited 1 s", "ready"]
    assert events == ["events", "waited 60 s", "deadlines", "recording", *late]
