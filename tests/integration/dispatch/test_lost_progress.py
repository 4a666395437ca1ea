"""A job whose `progress` was lost: it starts where the settings say, and numbers its batches above all that wait."""

from __future__ import annotations

import dataclasses
import re
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from kafka import KafkaAdminClient
from pyspark.sql import SparkSession

from arborcast.core.eventlog.topics import PROGRESS_LOG
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs import parked
from arborcast.dispatch.logs.attempts import RUN_NUMBERS
from arborcast.dispatch.logs.parked import Place
from arborcast.dispatch.operations.audit import audit
from tests.support.broker import records_in
from tests.support.dispatch_job import job_settings, logs, running, subscription
from tests.support.receiver import Receiver
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def test_what_waits_leaves_before_what_comes_after_the_progress_was_lost(
    spark: SparkSession, tmp_path: Path, kafka_settings: KafkaSettings
) -> None:
    settings = job_settings(tmp_path, kafka_settings, "batch")
    dispatch = dataclasses.replace(settings.dispatch, starting_offsets="latest")
    settings = dataclasses.replace(settings, dispatch=dispatch)
    with Receiver() as receiver, logs(kafka_settings) as log:
        paused = subscription("paused", receiver.url("/paused"), "a", paused=True)
        log.subscribe(paused, subscription("well", receiver.url("/well"), "a"))
        sent = 0

        def send(count: int) -> None:
            nonlocal sent
            for _ in range(count):
                log.notify("a", b"<x>%d</x>" % sent)
                sent += 1
                receiver.wait_for(sent)  # each has a batch of its own

        def arrived() -> list[int]:
            return [
                int(each) for one in receiver.received("/paused") for each in re.findall(rb"<x>(\d+)</x>", one.body)
            ]

        with running(spark, settings):
            send(4)
        with closing(KafkaAdminClient(bootstrap_servers=kafka_settings.bootstrap_servers)) as admin:
            admin.delete_topics([kafka_settings.topic(PROGRESS_LOG)])
        with running(spark, settings):
            send(2)
        with running(spark, settings):
            send(1)
            wait_until(lambda: len(parked_places(kafka_settings)) == sent, "all is parked")
            places = parked_places(kafka_settings)
            log.subscribe(msgspec.structs.replace(paused, paused=False))
            wait_until(lambda: len(arrived()) >= sent, "all has arrived")
            report = audit(kafka_settings, 0, deep=True, patience_s=120)

    assert arrived() == list(range(sent)), "in the order of acceptance"
    assert [place.offset for place in places] == list(range(sent))
    assert [place.batch // RUN_NUMBERS for place in places] == [0] * 4 + [1] * 2 + [2]
    assert len({place.batch for place in places}) == sent, "no batch is called as an earlier one"
    assert report.balanced, report.problems


def parked_places(kafka: KafkaSettings) -> list[Place]:
    """Where what is parked was read, in the order in which it leaves."""
    records = records_in(kafka, "parked")
    return sorted(parked.decode_key(each.key)[0].place for each in records if each.value is not None)
