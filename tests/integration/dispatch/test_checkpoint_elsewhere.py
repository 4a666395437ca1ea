"""The checkpoint as the URI of a Hadoop file system: the same job, which goes on there where it was."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.dispatch_job import job_settings, logs, running, subscription
from tests.support.receiver import Receiver
from topic_model.settings import KafkaSettings

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def test_a_checkpoint_named_by_a_uri(spark: SparkSession, tmp_path: Path, kafka_settings: KafkaSettings) -> None:
    settings = job_settings(tmp_path / "home", kafka_settings)
    shared = tmp_path / "shared"
    dispatch = dataclasses.replace(settings.dispatch, checkpoint=shared.as_uri())
    settings = dataclasses.replace(settings, dispatch=dispatch)
    with Receiver() as receiver, logs(kafka_settings) as log:
        log.subscribe(subscription("one", receiver.url("/one"), "a//."))
        names = []
        for _ in range(2):  # the second job finds what the first one has written
            with running(spark, settings):
                names.append(log.notify("a/b"))
                receiver.wait_for(len(names))
        arrived = [each.headers["arborcast-notification-id"] for each in receiver.received("/one")]

    assert arrived == names, "nothing is lost between the two, and nothing comes again"
    assert list(shared.glob("*/commits/0")), "Spark's progress is there"
    assert not (settings.home / "checkpoints").exists(), "and nowhere else"
