"""Backup of the logs of a running or stopped engine, and restore into new logs.

The order of reading makes it consistent. A delivery moves from `notifications` to `parked` to `dead`, and is written at
its new place before it leaves the old one; so the logs are read in that order, after the settled positions. Only a
redrive moves back, from `dead` to `parked`: a letter that leaves `dead` after the backup has begun is still included. A
delivery that is read twice may be restored twice, and is pushed again under its id. The control log is read last, so
every delivery has its subscription.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec

from arborcast.admin.archive import BackupError, BackupRecord, Contents, Manifest, read_log, seal, verify, write_log
from arborcast.admin.operations import recorded
from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import (
    ConsumerRecord,
    Producer,
    as_infrastructure_error,
    make_producer,
    partition_of_key,
    translated,
)
from arborcast.core.eventlog.damaged import unless_damaged
from arborcast.core.eventlog.scan import LogScan
from arborcast.core.eventlog.topics import PULL_LOG, ensure_topics, specifications
from arborcast.core.progress import Progress, no_progress
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import time_ms
from arborcast.dispatch.logs import parked
from arborcast.dispatch.logs.attempts import partition_of_subscription
from arborcast.dispatch.logs.parked import with_parked_overhead
from arborcast.dispatch.realtime.messages import read_progress
from arborcast.topic_model.projections.pull_store import PullLimits, PullStore
from arborcast.topic_model.records import notifications, pull
from arborcast.topic_model.records.operations import RESTORE, change


def backup(kafka: KafkaSettings, folder: Path, limits: PullLimits, progress: Progress = no_progress) -> Manifest:
    """Write a backup into an empty folder; returns its manifest. `limits` are those of the gateways' pull points.
    Raises InfrastructureError, RecordVersionError, BackupError."""
    made_ms = time_ms()
    undelivered = _first_undelivered(kafka)
    # Read before the parked deliveries: deliveries that had left the log by this time are parked or settled.
    with LogScan(kafka, "dead") as log:
        letters_until = log.ends()
    logs: dict[str, Contents] = {}
    try:
        # Some undelivered ones are in `parked`, the others were not dispatched yet. One file: the older ones first.
        logs["notifications"] = write_log(folder, "notifications", _undelivered(kafka, undelivered, progress))
        logs["dead"] = write_log(folder, "dead", _letters(kafka, letters_until, progress))
    except sqlite3.Error as error:
        raise BackupError(f"a temporary file cannot be written (TMPDIR sets its folder): {error}") from error
    logs["pullpoints"] = write_log(folder, "pullpoints", _pullable(kafka, limits, progress))
    for name in ("retained", "control"):
        records = (BackupRecord(each.key, each.value) for each in _all(kafka, name, progress))
        logs[name] = write_log(folder, name, records)
    manifest = Manifest(made_ms, logs)
    seal(folder, manifest)
    return manifest


def _all(kafka: KafkaSettings, name: str, progress: Progress) -> Iterator[ConsumerRecord]:
    with LogScan(with_parked_overhead(kafka), name, progress=progress) as log:
        yield from log.read_all()


def _first_undelivered(kafka: KafkaSettings) -> dict[int, int]:
    """The offset in each partition before which all is settled, or parked."""
    with LogScan(kafka, "notifications") as log:
        firsts = log.beginnings()
    known = read_progress(kafka)
    return {number: max(first, known[number].position if number in known else 0) for number, first in firsts.items()}


def _undelivered(kafka: KafkaSettings, first_undelivered: dict[int, int], progress: Progress) -> Iterator[BackupRecord]:
    # A temporary SQLite file, deleted with the connection: undelivered notifications need not fit into memory.
    with closing(sqlite3.connect("")) as waiting:
        waiting.execute("create table waiting (key blob primary key, batch, partition, offset, subscription, value)")
        for record in _all(kafka, "parked", progress):
            _apply(waiting, record, first_undelivered)
        rows = waiting.execute("select subscription, value from waiting order by batch, partition, offset")
        for subscription, value in rows:
            decoded = parked.decode(value)
            if isinstance(decoded, parked.Parked):
                yield BackupRecord(
                    *notifications.encode(msgspec.structs.replace(decoded.notification, only=subscription))
                )
    with LogScan(kafka, "notifications", progress=progress) as log:
        for record in log.read_from(first_undelivered):
            yield BackupRecord(record.key, record.value)


def _apply(waiting: sqlite3.Connection, record: ConsumerRecord, first_undelivered: dict[int, int]) -> None:
    read = parked.readable(record.key, record.value, (record.partition, record.offset))
    if read is None or read.of_tries:
        return  # attempts are counted from 0 again
    place = read.delivery.place
    if record.value is None:
        waiting.execute("delete from waiting where key = ?", (record.key,))
    elif place.redrive or place.offset < first_undelivered.get(place.partition, 0):
        waiting.execute(
            "insert or replace into waiting values (?, ?, ?, ?, ?, ?)",
            (record.key, place.batch, place.partition, place.offset, read.delivery.subscription, record.value),
        )
    # Otherwise its notification is dispatched again as a whole.


def _letters(kafka: KafkaSettings, until: dict[int, int], progress: Progress) -> Iterator[BackupRecord]:
    """The letters in the log before that end, and all later ones: a letter removed since may be among the parked
    deliveries read so far, or may have been given up again."""
    with closing(sqlite3.connect("")) as letters:
        letters.execute("create table letters (key blob primary key, value, at_ms)")
        for record in _all(kafka, "dead", progress):
            read = parked.readable_letter(record.key, record.value, (record.partition, record.offset))
            if read is None:
                continue
            _, letter = read
            if letter is not None:
                values = record.key, record.value, letter.at_ms
                letters.execute("insert or replace into letters values (?, ?, ?)", values)
            elif record.offset < until.get(record.partition, 0):
                letters.execute("delete from letters where key = ?", (record.key,))
        for key, value, at_ms in letters.execute("select key, value, at_ms from letters order by rowid"):
            delivery, _ = parked.decode_key(key)
            # Batches and offsets start again at 0, and their letters must not replace these.
            place = delivery.place._replace(redrive=delivery.place.redrive or at_ms)
            yield BackupRecord(delivery._replace(place=place).key(), value)


def _pullable(kafka: KafkaSettings, limits: PullLimits, progress: Progress) -> Iterator[BackupRecord]:
    """Waiting and claimed messages that are not settled, in their original form."""
    store = PullStore(limits)
    for record in _all(kafka, PULL_LOG, progress):
        read = unless_damaged(PULL_LOG, (record.partition, record.offset), pull.decode, record.key, record.value)
        if read is not None:
            store.apply(*read, record.offset)
    unsettled = store.unsettled()
    for record in _all(kafka, PULL_LOG, progress):
        if record.offset in unsettled:
            yield BackupRecord(record.key, record.value)


# Records, and bytes of them, that wait for acknowledgement: the producer has no bound of its own.
_AT_ONCE = 2_000
_AT_ONCE_BYTES = 32 * 1024 * 1024

_FLUSH_S = 60.0


def restore(folder: Path, kafka: KafkaSettings, progress: Progress = no_progress) -> Manifest:
    """Create the logs, append the contents of the backup and return its manifest. Raises BackupError if the backup is
    damaged or a log is not empty: a restore never mixes with existing records. Raises InfrastructureError if Kafka
    refuses a write; the logs are then incomplete, and must be deleted, or another prefix chosen, before the next
    attempt."""
    progress("checking the backup")
    manifest = verify(folder)
    ensure_topics(kafka)
    for specification in specifications(kafka):
        _require_empty(kafka, specification.name.removeprefix(kafka.prefix))
    with (
        closing(make_producer(with_parked_overhead(kafka))) as producer,
        recorded(kafka, RESTORE, [change(str(folder))]) as results,
    ):
        for log in manifest.logs:
            total = manifest.logs[log].records
            _fill(producer, kafka.topic(log), log, _counted(read_log(folder, log), log, total, progress))
        results += [f"{contents.records} records of {log}" for log, contents in manifest.logs.items()]
    return manifest


def _counted(records: Iterator[BackupRecord], log: str, total: int, progress: Progress) -> Iterator[BackupRecord]:
    for number, record in enumerate(records):
        progress(f"filling the {log} log", number, total)
        yield record


def _require_empty(kafka: KafkaSettings, log: str) -> None:
    with LogScan(kafka, log) as reading:
        if any(reading.ends().values()):
            raise BackupError(
                f"Kafka topic {kafka.topic(log)} is not empty: a backup is only restored where no engine was started "
                "yet. Choose another kafka.prefix, or stop everything and delete the topics of this one"
            )


def _fill(producer: Producer, topic: str, log: str, records: Iterator[BackupRecord]) -> None:
    failures: list[BaseException] = []
    with translated(f"Kafka topic {topic} cannot be written"):
        partitions = len(producer.partitions_for(topic))
    count = size = 0
    for record in records:
        with translated(f"Kafka topic {topic} cannot be written"):
            future = producer.send(
                topic, value=record.value, key=record.key, partition=_partition(log, record.key, partitions)
            )
        future.add_errback(failures.append)
        count, size = count + 1, size + len(record.key) + len(record.value or b"")
        if count == _AT_ONCE or size >= _AT_ONCE_BYTES:
            _flush(producer, topic, failures)
            count = size = 0
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
    """The partition that the engine would choose, so that later reads by key find the record."""
    if log == "dead":
        delivery, _ = parked.decode_key(key)
        return partition_of_subscription(delivery.subscription, partitions)
    return partition_of_key(key, partitions)
