"""Fixtures for tests of the dispatch job: settings and logs of one test, and a job shared by the tests of a process."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.realtime.mode_policy import Mode
from arborcast.dispatch.settings import JobSettings
from tests.support.dispatch_job import Logs, Own, RunningJob, job_settings, logs
from tests.support.gateway_process import GatewayRun, gateway_run


@pytest.fixture
def settings(tmp_path: Path, kafka_settings: KafkaSettings) -> JobSettings:
    """Settings for the job of one test."""
    return job_settings(tmp_path, kafka_settings)


@pytest.fixture
def log(kafka_settings: KafkaSettings) -> Iterator[Logs]:
    """The logs of that job."""
    with logs(kafka_settings) as opened:
        yield opened


@pytest.fixture(scope="module")
def mode(request: pytest.FixtureRequest) -> Mode:
    """The mode of the job in modules with the mark `IN_BOTH_MODES`."""
    chosen: Mode = getattr(request, "param", "realtime")
    return chosen


def _settings(kafka: KafkaSettings, folders: pytest.TempPathFactory, mode: Mode) -> JobSettings:
    prefixed = dataclasses.replace(kafka, prefix=f"t{uuid.uuid4().hex[:8]}.")
    return job_settings(folders.mktemp("job"), prefixed, mode)


@pytest.fixture(scope="module")
def module_settings(kafka: KafkaSettings, tmp_path_factory: pytest.TempPathFactory, mode: Mode) -> JobSettings:
    """Settings for the job of one module."""
    return _settings(kafka, tmp_path_factory, mode)


@pytest.fixture(scope="session")
def shared_jobs(
    spark: SparkSession, kafka: KafkaSettings, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Mode], RunningJob]:
    """One job of each mode in a process, since a start takes seconds."""
    return cache(lambda mode: RunningJob(spark, _settings(kafka, tmp_path_factory, mode)))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Function, nextitem: pytest.Function | None) -> None:
    """Stop the shared job after the last consecutive test that needs it."""
    if "shared_jobs" in item.funcargs and (nextitem is None or "shared_jobs" not in nextitem.fixturenames):
        RunningJob.stop_last()


@pytest.fixture(scope="module")
def job(shared_jobs: Callable[[Mode], RunningJob], mode: Mode) -> RunningJob:
    """The shared job: see `own`. A test may restart it. A module with other settings has a fixture of this
    name."""
    shared = shared_jobs(mode)
    shared.resume()
    return shared


@pytest.fixture(scope="module")
def job_logs(job: RunningJob) -> Iterator[Logs]:
    """The logs of the job. Tests that write to them take all names from `own`."""
    with logs(job.settings.kafka, job.numbers) as opened:
        yield opened


@pytest.fixture(scope="module")
def gateway(job: RunningJob, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRun]:
    """A gateway of the job."""
    with gateway_run(tmp_path_factory.mktemp("gateway"), job.settings.kafka) as run:
        yield run


@pytest.fixture
def own(job: RunningJob, job_logs: Logs) -> Iterator[Own]:
    """The part of one test in the shared job."""
    job.resume()
    mine = Own(job, job_logs)
    yield mine
    mine.close()
