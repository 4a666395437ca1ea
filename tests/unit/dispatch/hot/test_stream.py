"""What a batch leaves behind after each of its rounds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.hot.intake import Exclusions
from arborcast.dispatch.hot.sink import SinkJob
from arborcast.dispatch.hot.stream import HotPath, JobParts
from arborcast.dispatch.matching.bases import FileBase
from arborcast.dispatch.matching.view import SharedView
from arborcast.dispatch.monitoring.metrics import JobMetrics
from arborcast.dispatch.redelivery.partition_reports import PartitionReport
from arborcast.dispatch.spark.query_supervisor import StopGate, StopRequested
from tests.support.dispatch_job import job_settings


class View:
    read_s = 0.0

    def listen(self, listener: object) -> None: ...

    def refresh(self, timeout_s: float) -> SharedView:
        return SharedView(FileBase("base"), None, 0)


class Batches:
    """The hot path over rounds that report what is given, in place of Spark's."""

    def __init__(self, patch: pytest.MonkeyPatch, *rounds: list[PartitionReport] | Exception) -> None:
        self.gate = StopGate()
        self.written: list[Mapping[int, int]] = []
        self.jobs: list[SinkJob] = []
        self._rounds = list(rounds)
        patch.setattr(JobParts, "exclusions", lambda parts: Exclusions())
        patch.setattr(JobParts, "take_reports", lambda parts, reports: None)
        patch.setattr(HotPath, "_run", lambda hot, frame, job: self._round(job))
        settings = job_settings(Path("unused"), KafkaSettings())
        unused = cast(Any, None)
        self.hot = HotPath(JobParts(unused, settings, cast(Any, View()), unused, self.gate, JobMetrics(), unused))
        patch.setattr(self.hot, "_write", self.written.append)

    def _round(self, job: SinkJob) -> list[PartitionReport]:
        self.jobs.append(job)
        found = self._rounds.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


def report(rest: bool = False, **done: int) -> PartitionReport:
    made = PartitionReport()
    made.rest = rest
    made.done = {int(partition[1:]): offset for partition, offset in done.items()}
    made.passed = {partition: {("s", "t"): offset} for partition, offset in made.done.items()}
    return made


def test_each_round_writes_the_positions_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Batches(monkeypatch, [report(rest=True, p0=7), report(p1=3)], [report(p0=9)])

    batches.hot.run_batch(cast(Any, None), 2)

    assert {job.number for job in batches.jobs} == {1}
    assert batches.written == [{0: 8, 1: 4}, {0: 10}]
    assert batches.hot.positions == {0: 10, 1: 4}
    assert [job.done for job in batches.jobs] == [{}, {0: 7, 1: 3}]
    assert [job.passed for job in batches.jobs] == [{}, {0: {("s", "t"): 7}, 1: {("s", "t"): 3}}]


def test_a_batch_that_ends_between_two_rounds_leaves_the_positions_of_those_that_are_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = Batches(monkeypatch, [report(rest=True, p0=7)], RuntimeError("a worker died for the fourth time"))
    with pytest.raises(RuntimeError, match="fourth time"):
        batches.hot.run_batch(cast(Any, None), 0)
    assert batches.hot.positions == {0: 8}
    assert not batches.hot.clean, "pushes were started behind them"

    stopped = Batches(monkeypatch, [report(rest=True, p0=7)])
    monkeypatch.setattr(JobParts, "take_reports", lambda parts, reports: stopped.gate.close())
    with pytest.raises(StopRequested):
        stopped.hot.run_batch(cast(Any, None), 0)
    assert stopped.written == [{0: 8}]
    assert stopped.hot.clean
