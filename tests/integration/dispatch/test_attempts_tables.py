"""The tables of attempts between a real log and real tables: each row once, whatever happens to their writer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs.attempts import AttemptsLog
from arborcast.dispatch.recording.attempts_tables import AttemptsTables, EndedDeliveries
from arborcast.dispatch.tables.delta_table import DeltaTableWriter
from tests.support.table_rows import attempt

pytestmark = pytest.mark.kafka


class Rig:
    """A log of three partitions, two tables, and a clock that the test sets."""

    def __init__(self, kafka: KafkaSettings, home: Path) -> None:
        self.kafka = kafka
        self.home = home
        self.now = 0.0

    def append(self, *names: str) -> None:
        """One delivery for each, those of one name in their order."""
        with closing(AttemptsLog(self.kafka)) as log:
            for name in names:
                log.add(attempt(name, f"s{name}", "delivered"))
            log.settle(120)

    @contextmanager
    def writer(self) -> Iterator[AttemptsTables]:
        attempts, deliveries = str(self.home / "attempts"), str(self.home / "deliveries")
        with closing(AttemptsTables(self.kafka, attempts, deliveries, 5.0, clock=lambda: self.now)) as writer:
            yield writer

    def commit(self, writer: AttemptsTables) -> None:
        self.now += 5.0
        while writer.step():
            self.now += 5.0

    def names(self, table: str) -> list[str]:
        return sorted(DeltaTable(str(self.home / table)).to_pyarrow_table().column("notification").to_pylist())

    def both(self) -> list[str]:
        assert self.names("attempts") == self.names("deliveries")
        return self.names("attempts")


@pytest.fixture
def rig(kafka_settings: KafkaSettings, tmp_path: Path) -> Rig:
    own = replace(kafka_settings, partitions=3)
    ensure_topics(own)
    return Rig(own, tmp_path)


def test_commits_at_its_interval_and_goes_on_behind_that_after_a_crash(rig: Rig) -> None:
    rig.append("a", "b", "c")
    with rig.writer() as writer:
        rig.commit(writer)
        assert rig.both() == ["a", "b", "c"]
        rig.append("d", "e")
        writer.step()  # read, not committed
        assert rig.both() == ["a", "b", "c"]
    with rig.writer() as writer:
        rig.append("f")
        rig.commit(writer)
        assert rig.both() == ["a", "b", "c", "d", "e", "f"]
        assert writer.progress is not None
        before = writer.progress
        rig.commit(writer)
        assert writer.progress == before, "nothing new, no commit"


def test_an_idle_engine_that_starts_knows_that_it_is_up_to_date(rig: Rig) -> None:
    rig.append("a")
    with rig.writer() as writer:
        rig.commit(writer)
    with rig.writer() as writer:
        writer.step()
        assert writer.progress is not None
        assert sum(writer.progress.settled.values()) == 1


def test_a_crash_between_the_tables_or_after_a_commit_repeats_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    extend = DeltaTableWriter.extend

    def unsure(table: DeltaTableWriter, rows: pa.Table, progress: Mapping[str, int]) -> None:
        extend(table, rows, progress)
        raise OSError("connection reset")

    def crashed(*_: object) -> NoReturn:
        raise OSError("gone")

    with rig.writer() as writer:
        for where, name, does in ((DeltaTableWriter, "extend", unsure), (EndedDeliveries, "append", crashed)):
            rig.append(*(f"{name}{number}" for number in range(5)))
            rig.now += 5.0
            with monkeypatch.context() as patched:
                patched.setattr(where, name, does)
                with pytest.raises(OSError, match=r"reset|gone"):
                    writer.step()
        rig.commit(writer)
        rig.append("last")
        rig.commit(writer)

    assert len(rig.both()) == 11
    assert len(set(rig.both())) == 11


def test_log_that_was_made_anew_is_added_from_its_beginning(rig: Rig) -> None:
    rig.append("a", "b", "c")
    with rig.writer() as writer:
        rig.commit(writer)
    rig.kafka = replace(rig.kafka, prefix=f"{rig.kafka.prefix}again.")
    ensure_topics(rig.kafka)
    rig.append("d")
    with rig.writer() as writer:
        rig.commit(writer)

    assert rig.both() == ["a", "b", "c", "d"]
