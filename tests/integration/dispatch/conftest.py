"""What tests of the dispatch job need: settings, logs and a receiver of a test's own; a job that a module shares."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.realtime.mode_policy import Mode
from arborcast.dispatch.settings import JobSettings
from tests.support.dispatch_job import Logs, Own, RunningJob, job_settings, logs, running
from tests.support.gateway_process import GatewayRun, gateway_run


@pytest.fixture
def settings(tmp_path: Path, kafka_settings: KafkaSettings) -> JobSettings:
    """For a job of the test's own."""
    return job_settings(tmp_path, kafka_settings)


@pytest.fixture
def log(kafka_settings: KafkaSettings) -> Iterator[Logs]:
    """What such a job reads."""
    with logs(kafka_settings) as opened:
        yield opened


@pytest.fixture(scope="module")
def gear(request: pytest.FixtureRequest) -> Mode | None:
    """That of the shared job, where a module has the mark `IN_BOTH_GEARS`; without one the job chooses."""
    chosen: Mode | None = getattr(request, "param", None)
    return chosen


@pytest.fixture(scope="module")
def shared_settings(kafka: KafkaSettings, tmp_path_factory: pytest.TempPathFactory, gear: Mode | None) -> JobSettings:
    """Those of the shared job. A module that wants others has a fixture of this name."""
    prefixed = dataclasses.replace(kafka, prefix=f"t{uuid.uuid4().hex[:8]}.")
    return job_settings(tmp_path_factory.mktemp("job"), prefixed, gear)


@pytest.fixture(scope="module")
def job(spark: SparkSession, shared_settings: JobSettings) -> Iterator[RunningJob]:
    """A job that all tests of a module share, since a start costs seconds: see `own`. A test may restart it."""
    with running(spark, shared_settings) as started:
        yield started


@pytest.fixture(scope="module")
def job_logs(job: RunningJob) -> Iterator[Logs]:
    """The logs of the shared job. A test that writes to them names everything by `own`."""
    with logs(job.settings.kafka) as opened:
        yield opened


@pytest.fixture(scope="module")
def gateway(job: RunningJob, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRun]:
    """One of the shared job."""
    with gateway_run(tmp_path_factory.mktemp("gateway"), job.settings.kafka) as run:
        yield run


@pytest.fixture
def own(job: RunningJob, job_logs: Logs) -> Iterator[Own]:
    """A test's own part of the shared job."""
    mine = Own(job, job_logs)
    yield mine
    mine.close()
