"""Filling the logs of an engine that was never started from a backup."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from core.errors import InfrastructureError
from core.eventlog.client import Producer, as_infrastructure_error, make_producer, partition_of_key, translated
from core.eventlog.scan import LogScan
from core.eventlog.settings import KafkaSettings
from core.eventlog.topics import ensure_topics, specifications
from dispatch.logs import parked
from dispatch.logs.attempts import partition_of_subscription
from dispatch.logs.parked import roomy
from jobs.maintenance.archive import BackupError, Manifest, Record, read_log, verify

# How many records are under way at a time.
_AT_ONCE = 2_000

_FLUSH_S = 60.0


def restore(folder: Path, kafka: KafkaSettings) -> Manifest:
    """Make the logs and append what the backup holds; returns what that was.

    Raises BackupError when the backup is damaged, or when there is anything in one of the logs: nothing is ever mixed
    with what an engine has written. Raises InfrastructureError when Kafka does not take it; the logs are filled in
    part then, and have to be deleted, or another prefix chosen, before it is tried again.
    """
    manifest = verify(folder)
    ensure_topics(kafka)
    for specification in specifications(kafka):
        _require_empty(kafka, specification.name.removeprefix(kafka.prefix))
    with closing(make_producer(roomy(kafka))) as producer:
        for log in manifest.logs:
            _fill(producer, kafka.topic(log), log, read_log(folder, log))
    return manifest


def _require_empty(kafka: KafkaSettings, log: str) -> None:
    with LogScan(kafka, log) as reading:
        if any(reading.ends().values()):
            raise BackupError(
                f"Kafka topic {kafka.topic(log)} is not empty: a backup is only restored where no engine was started "
                "yet. Choose another kafka.prefix, or stop everything and delete the topics of this one"
            )


def _fill(producer: Producer, topic: str, log: str, records: Iterator[Record]) -> None:
    failures: list[BaseException] = []
    with translated(f"Kafka topic {topic} cannot be written"):
        partitions = len(producer.partitions_for(topic))
    under_way = 0
    for record in records:
        with translated(f"Kafka topic {topic} cannot be written"):
            future = producer.send(
                topic, value=record.value, key=record.key, partition=_partition(log, record.key, partitions)
            )
        future.add_errback(failures.append)
        under_way += 1
        if under_way == _AT_ONCE:
            _flush(producer, topic, failures)
            under_way = 0
    _flush(producer, topic, failures)


def _flush(producer: Producer, topic: str, failures: list[BaseException]) -> None:
    deadline = time.monotonic() + _FLUSH_S
    with translated(f"Kafka topic {topic} cannot be written"):
        producer.flush(timeout=_FLUSH_S)
    if failures:
        raise as_infrastructure_error(f"Kafka topic {topic} did not take a record", failures[0])
    if time.monotonic() > deadline:
        raise InfrastructureError(f"Kafka topic {topic} did not take the records within {_FLUSH_S:g} s")


def _partition(log: str, key: bytes, partitions: int) -> int:
    """The partition in which the engine would have put it: who looks for a record looks there."""
    if log == "dead":
        delivery, _ = parked.decode_key(key)
        return partition_of_subscription(delivery.subscription, partitions)
    return partition_of_key(key, partitions)
