"""The archive between a real log and a real table: nothing is left out or repeated, whatever happens to its writer."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from kafka.admin import KafkaAdminClient

from arborcast.core.eventlog.client import make_producer
from arborcast.core.eventlog.follower import LogCursor
from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.recording.archive import Archive
from arborcast.dispatch.tables.delta_table import DeltaTableWriter
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from tests.support.make import Clock
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka


def append(kafka: KafkaSettings, names: list[str], payload: bytes = b"<x/>") -> None:
    producer = make_producer(kafka)
    for number, name in enumerate(names):
        key, value = notifications.encode(Notification(name, TopicPath(f"t{number % 5}"), payload, 1_700_000_000_000))
        producer.send(kafka.topic("notifications"), key=key, value=value)
    producer.flush()
    producer.close(timeout=5)


def archived(location: Path) -> list[str]:
    return sorted(DeltaTable(str(location)).to_pyarrow_table().column("notification").to_pylist())


def archive(kafka: KafkaSettings, location: Path) -> tuple[Archive, Clock]:
    clock = Clock(0.0)
    return Archive(kafka, str(location), 5.0, clock), clock


def commit(writer: Archive, clock: Clock) -> None:
    clock.now += 5.0
    while writer.step():
        clock.now += 5.0


@pytest.fixture
def log(kafka_settings: KafkaSettings) -> KafkaSettings:
    own = replace(kafka_settings, partitions=3)
    ensure_topics(own)
    return own


def test_commits_at_its_interval_and_goes_on_behind_that_after_a_crash(log: KafkaSettings, tmp_path: Path) -> None:
    table = tmp_path / "notifications"
    append(log, ["a", "b", "c"])
    writer, clock = archive(log, table)
    with closing(writer):
        commit(writer, clock)
        assert archived(table) == ["a", "b", "c"]
        append(log, ["d", "e"])
        writer.step()  # read, not committed
        assert archived(table) == ["a", "b", "c"]
    # What was in memory is lost with the writer.
    writer, clock = archive(log, table)
    with closing(writer):
        append(log, ["f"])
        commit(writer, clock)
    assert archived(table) == ["a", "b", "c", "d", "e", "f"]
    assert writer.progress is not None
    assert (writer.progress.rows, sum(writer.progress.settled.values())) == (3, 6)


def test_a_commit_with_an_unknown_outcome(log: KafkaSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "notifications"
    append(log, ["a", "b"])
    writer, clock = archive(log, table)
    extend = DeltaTableWriter.extend

    def unsure(table: DeltaTableWriter, rows: pa.Table, progress: Mapping[str, int]) -> None:
        extend(table, rows, progress)
        raise OSError("connection reset")

    with closing(writer):
        writer.step()
        clock.now += 5.0
        with monkeypatch.context() as patched:
            patched.setattr(DeltaTableWriter, "extend", unsure)
            with pytest.raises(OSError, match="reset"):
                writer.step()
        commit(writer, clock)
        append(log, ["c"])
        commit(writer, clock)
    assert archived(table) == ["a", "b", "c"]


def test_large_messages_are_read_a_few_at_a_time(log: KafkaSettings, tmp_path: Path) -> None:
    append(log, [f"n{number:03}" for number in range(200)], b"x" * 60_000)
    with closing(LogCursor(log, "notifications", {})) as tail:
        pieces = []
        while piece := tail.read(1_000, 1_000_000):
            pieces.append(sum(len(record.value or b"") for record in piece))
    assert len(pieces) >= 3
    # One poll more than was asked for, at most.
    assert max(pieces) < 1_000_000 + 64 * 61_000


def test_log_that_was_made_anew_is_read_from_its_beginning(log: KafkaSettings, tmp_path: Path) -> None:
    table = tmp_path / "notifications"
    append(log, [f"n{number}" for number in range(20)])
    writer, clock = archive(log, table)
    with closing(writer):
        commit(writer, clock)
    other = replace(log, prefix=f"{log.prefix}again.")
    ensure_topics(other)
    append(other, ["z"])
    writer, clock = archive(other, table)
    with closing(writer):
        commit(writer, clock)
        commit(writer, clock)
    assert archived(table) == sorted([*(f"n{number}" for number in range(20)), "z"])


def test_partition_that_was_added_is_read_too(
    log: KafkaSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arborcast.core.eventlog.client._METADATA_AGE_ONE_BROKER_MS", 500)
    table = tmp_path / "notifications"
    append(log, ["a"])
    writer, clock = archive(log, table)
    topic = log.topic("notifications")
    with closing(writer):
        commit(writer, clock)
        with closing(KafkaAdminClient(bootstrap_servers=log.bootstrap_servers)) as admin:
            admin.create_partitions({topic: 4})
        producer = make_producer(log)
        key, value = notifications.encode(Notification("b", TopicPath("t"), b"<x/>", 1_700_000_000_000))
        wait_until(lambda: len(producer.partitions_for(topic)) >= 4, "four partitions")
        producer.send(topic, key=key, value=value, partition=3)
        producer.flush()
        producer.close(timeout=5)

        def found() -> bool:
            commit(writer, clock)
            return len(archived(table)) >= 2

        wait_until(found, "the new partition is found")
    assert archived(table) == ["a", "b"]
