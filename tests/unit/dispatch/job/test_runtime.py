from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from arborcast.dispatch.job import runtime
from arborcast.dispatch.job.runtime import DispatchJob
from arborcast.dispatch.spark.query_supervisor import StopGate


class TaskFailed(Exception):
    """As py4j's exception, which is none of pyspark."""


def test_a_failed_task_that_keeps_the_workers_does_not_end_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
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
