"""Two engines with real logs: a notification of one reaches the log of the other if that has a subscription for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from arborcast.client import Client
from arborcast.core.settings import KafkaSettings, SecretSettings
from arborcast.dispatch.realtime.mode_policy import Mode
from tests.support.command import Shell
from tests.support.dispatch_job import MODES, RunningJob, job_settings, running
from tests.support.federation import AdministratorRun, EngineRun, federation
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture(params=MODES)
def two(
    tmp_path: Path, kafka_settings: KafkaSettings, spark: SparkSession, request: pytest.FixtureRequest
) -> Iterator[tuple[AdministratorRun, EngineRun, EngineRun, RunningJob]]:
    """G/a with a job, and H/b."""
    mode: Mode = request.param
    with federation(tmp_path, kafka_settings, ["G/a", "H/b"]) as (administrator, (a, b)):
        settings = job_settings(tmp_path / "job", a.kafka, mode)
        settings = dataclasses.replace(settings, secrets=SecretSettings(key_file=str(a.secrets)))
        with running(spark, settings) as job:
            yield administrator, a, b, job


def links_of(engine: EngineRun) -> list[dict[str, object]]:
    found: list[dict[str, object]] = Shell(engine.gateway.config).json("federation", "links")["links"]
    return found


def test_only_messages_of_interest_go_to_other_engines_in_order(
    two: tuple[AdministratorRun, EngineRun, EngineRun, RunningJob],
) -> None:
    administrator, a, b, _ = two
    with Client(b.gateway.broker) as there, Client(a.gateway.broker) as here:
        there.subscribe("all/alarm//.", to="http://127.0.0.1:9/somebody")
        wait_until(lambda: [each["topics"] for each in links_of(a)] == [["all/alarm//."]], a.gateway.log.read_text)
        assert [(each["link"], each["to"], each["state"]) for each in links_of(a)] == [("peer-group.H", "H/", "active")]
        for number in range(20):
            here.notify("all/alarm/fire", f"<n>{number}</n>")
            here.notify("all/other", "<n/>")
        wait_until(lambda: len(b.notifications()) >= 20, lambda: b.notifications())
        assert [each.payload for each in b.notifications()] == [b"<n>%d</n>" % number for number in range(20)]
        assert {each.path for each in b.notifications()} == {("G/a",)}
        sent = {each.id for each in a.notifications() if each.topic == "all/alarm/fire"}
        assert {each.id for each in b.notifications()} == sent, "the same id everywhere"

        # The other engine is away for a while: waiting messages arrive in order, once.
        b.gateway.kill()
        for number in range(20, 60):
            here.notify("all/alarm/fire", f"<n>{number}</n>")
        administrator.kill()
        b.gateway.start()
        wait_until(lambda: len(b.notifications()) >= 60, lambda: b.notifications())
        assert [each.payload for each in b.notifications()] == [b"<n>%d</n>" % number for number in range(60)]
        administrator.start()
        wait_until(lambda: {each.state for each in administrator.topology.members} == {"live"})
    assert administrator.stop() == 0
