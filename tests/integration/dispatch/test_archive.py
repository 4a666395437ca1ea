"""The archive between a real log and a real table: crashes of its writer neither lose nor repeat rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from kafka.admin import KafkaAdminClient

from arborcast.core.eventlog.client import make_producer
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


def append(kafka: KafkaSettings, *names: str, partition: int | None = None) -> None:
    with closing(make_producer(kafka)) as producer:
        for number, name in enumerate(names):
            made = Notification(name, TopicPath(f"t{number % 5}"), b"<x/>", 1_700_000_000_000)
            key, value = notifications.encode(made)
            producer.send(kafka.topic("notifications"), key=key, value=value, partition=partition)
        producer.flush()


def archived(location: Path) -> list[str]:
    return sorted(DeltaTable(str(location)).to_pyarrow_table().column("notification").to_pylist())


@contextmanager
def archive(kafka: KafkaSettings, location: Path) -> Iterator[tuple[Archive, Callable[[], None]]]:
    """A writer, and a function that commits. The exit of the context loses the state in memory, as a crash does."""
    clock = Clock(0.0)
    with closing(Archive(kafka, str(location), 5.0, clock)) as writer:

        def commit() -> None:
            clock.now += 5.0
            while writer.step():
                clock.now += 5.0

        yield writer, commit


@pytest.fixture
def log(kafka_settings: KafkaSettings) -> KafkaSettings:
    own = replace(kafka_settings, partitions=3)
    ensure_topics(own)
    return own


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "notifications"


def test_commits_by_interval_and_continues_after_a_crash(log: KafkaSettings, table: Path) -> None:
    append(log, "a", "b", "c")
    with archive(log, table) as (writer, commit):
        commit()
        assert archived(table) == ["a", "b", "c"]
        append(log, "d", "e")
        writer.step()  # read, not committed
        assert archived(table) == ["a", "b", "c"]
    with archive(log, table) as (writer, commit):
        append(log, "f")
        commit()
    assert archived(table) == ["a", "b", "c", "d", "e", "f"]
    assert writer.progress is not None
    assert (writer.progress.rows, sum(writer.progress.settled.values())) == (3, 6)


def test_a_commit_with_an_unknown_outcome(log: KafkaSettings, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(log, "a", "b")
    extend = DeltaTableWriter.extend

    def unsure(table: DeltaTableWriter, rows: pa.Table, progress: Mapping[str, int]) -> None:
        extend(table, rows, progress)
        raise OSError("connection reset")

    with archive(log, table) as (_, commit):
        with monkeypatch.context() as patched:
            patched.setattr(DeltaTableWriter, "extend", unsure)
            with pytest.raises(OSError, match="reset"):
                commit()
        commit()
        append(log, "c")
        commit()
    assert archived(table) == ["a", "b", "c"]


@pytest.mark.parametrize("more", [0, 30], ids=["a shorter log", "a longer log"])
def test_a_recreated_log_is_read_from_its_beginning(log: KafkaSettings, table: Path, more: int) -> None:
    names = [f"n{number}" for number in range(20)]
    append(log, *names)
    with archive(log, table) as (_, commit):
        commit()
    other = replace(log, prefix=f"{log.prefix}again.")
    ensure_topics(other)
    others = ["z", *(f"z{number}" for number in range(more))]
    append(other, *others)
    for _ in range(2):
        with archive(other, table) as (_, commit):
            commit()
            commit()
        assert archived(table) == sorted([*names, *others])


def test_an_added_partition_is_read_too(log: KafkaSettings, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arborcast.core.eventlog.client._METADATA_AGE_ONE_BROKER_MS", 500)
    append(log, "a")
    with archive(log, table) as (_, commit):
        commit()
        topic = log.topic("notifications")
        with closing(KafkaAdminClient(bootstrap_servers=log.bootstrap_servers)) as admin:
            admin.create_partitions({topic: 4})
        with closing(make_producer(log)) as producer:
            wait_until(lambda: len(producer.partitions_for(topic)) >= 4, "four partitions")
        append(log, "b", partition=3)

        def found() -> bool:
            commit()
            return len(archived(table)) >= 2

        wait_until(found, "the new partition is found")
    assert archived(table) == ["a", "b"]
