from __future__ import annotations

import dataclasses
import os
import sys
import threading
import tracemalloc
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import msgspec
import pytest
from deltalake import DeltaTable

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import ConsumerRecord
from arborcast.core.eventlog.follower import LogCursor
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.delivery.health import Health
from arborcast.dispatch.logs import attempts
from arborcast.dispatch.recording import compaction, endpoint_health
from arborcast.dispatch.recording.compaction import join_bytes, join_in_process
from arborcast.dispatch.recording.endpoint_health import HealthHistory
from arborcast.dispatch.recording.follower import GatheringFollower, Work
from arborcast.dispatch.recording.recording import Recorder
from arborcast.dispatch.recording.slo import SloTable
from arborcast.dispatch.recording.state_tables import RoutesSnapshot
from arborcast.dispatch.recording.upkeep import Upkeep
from arborcast.dispatch.settings import TableSettings
from arborcast.dispatch.spark.query_supervisor import StopGate
from arborcast.dispatch.tables import ENDPOINT_HEALTH, SLO, TOPICS
from arborcast.dispatch.tables.delta_table import DeltaTableWriter
from arborcast.dispatch.tables.spec import TableSpec, open_table
from arborcast.topic_model.projections.suspensions import State
from arborcast.topic_model.routing.table import Route
from arborcast.topic_model.topics import TopicPath
from tests.support.make import Clock, subscription
from tests.support.table_rows import attempt, logged, neutral, read

SICK = Health(breaker="open", degraded=True, failures=3, relapses=1, probe_at_ms=7_000)


def history(location: Path) -> list[tuple[Any, ...]]:
    return [row[1:] for row in read(location, "at", "endpoint", "breaker", "sick", "failures")]


def test_health_history_has_a_row_for_each_change(tmp_path: Path) -> None:
    known: dict[str, Health] = {"http://bad/": SICK, "http://fair/": Health(failures=1)}
    clock = Clock(1.0)
    recorded = HealthHistory(str(tmp_path), lambda: known, clock=clock)
    expected = [("http://bad/", "open", True, 3)]
    for health, row in (
        (SICK, None),
        (Health(breaker="half-open", degraded=True, failures=4), None),
        (Health(degraded=True), ("http://bad/", "closed", True, 0)),
        (SICK, ("http://bad/", "open", True, 3)),
        (None, ("http://bad/", "closed", False, 0)),
        (None, None),
        (SICK, ("http://bad/", "open", True, 3)),
    ):
        recorded.step()
        clock.after(1)
        known.pop("http://bad/", None)
        known |= {"http://bad/": health} if health is not None else {}
        recorded.step()
        expected += [row] if row is not None else []
        assert history(tmp_path) == expected
        clock.after(1)

    restarted = HealthHistory(str(tmp_path), lambda: known, clock=clock)
    restarted.step()
    assert history(tmp_path) == expected, "compared with the table"
    HealthHistory(str(tmp_path), dict, clock=clock).step()
    assert history(tmp_path)[-1] == ("http://bad/", "closed", False, 0)
    # The clock is set back by an hour: changes are still recorded.
    clock.after(-3_600)
    known.clear()
    restarted.step()
    assert len(history(tmp_path)) == len(expected) + 2


def test_a_start_keeps_one_row_per_endpoint_in_memory(tmp_path: Path) -> None:
    rows = [
        endpoint_health._row("http://flaps/", endpoint_health._State("open", sick), SICK, second * 1_000)
        for second, sick in enumerate([True, False] * 5_000)
    ]
    DeltaTableWriter(ENDPOINT_HEALTH, str(tmp_path)).extend(ENDPOINT_HEALTH.arrow(rows), {})
    known = {"http://flaps/": msgspec.structs.replace(SICK, degraded=False)}
    recorded = HealthHistory(str(tmp_path), lambda: known)
    del rows
    tracemalloc.start()
    try:
        recorded.step()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(history(tmp_path)) == 10_000, "no change"
    assert peak < 1_000_000


def test_routes_are_written_after_a_change_and_bounded_in_number(tmp_path: Path) -> None:
    paused = subscription("s", url="http://e/", paused=True)
    routes: list[tuple[Route, State]] = [(Route(TopicPath(name), "//.", paused), "suspended") for name in "abc"]
    version, limits = [1], []

    def routes_up_to(limit: int) -> list[tuple[Route, State]]:
        limits.append(limit)
        return routes[:limit]

    def rows() -> list[tuple[Any, ...]]:
        return read(tmp_path, "topic", "expression", "state")

    table = RoutesSnapshot(str(tmp_path), 2, lambda: version[0], routes_up_to)
    table.step()
    table.step()
    RoutesSnapshot(str(tmp_path), 2, lambda: version[0], routes_up_to).step()
    assert limits == [2]
    assert rows() == [("a", "//.", "suspended"), ("b", "//.", "suspended")]
    del routes[0]
    version[0] = 2
    table.step()
    assert rows() == [("b", "//.", "suspended"), ("c", "//.", "suspended")]
    # A new version without changes, as after a renewal, is not written.
    written = DeltaTable(str(tmp_path)).version()
    for version[0] in (3, 4):
        table.step()
    assert DeltaTable(str(tmp_path)).version() == written
    routes[0] = routes[0][0], "paused"
    version[0] = 5
    table.step()
    assert DeltaTable(str(tmp_path)).version() == written + 1


def health_row(day: int, endpoint: str) -> dict[str, object]:
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day)
    return neutral(ENDPOINT_HEALTH, day=at.date(), at=at, endpoint=endpoint)


def test_upkeep_joins_files_and_removes_old_days(tmp_path: Path) -> None:
    table = DeltaTableWriter(ENDPOINT_HEALTH, str(tmp_path))
    for number in range(10):
        rows = ENDPOINT_HEALTH.arrow([health_row(day, f"e{number}") for day in (0, 29, 30)])
        table.extend(rows, {"w": number})
    now = datetime(2026, 2, 1, tzinfo=UTC).timestamp()

    upkeep = Upkeep(ENDPOINT_HEALTH, str(tmp_path), days=10, unused_hours=0, clock=lambda: now)
    upkeep.step()

    kept = DeltaTable(str(tmp_path))
    assert read(tmp_path, "endpoint", "day") == [
        (f"e{number}", date(2026, 1, day)) for number in range(10) for day in (30, 31)
    ]
    assert len(kept.file_uris()) == 2
    assert len([*tmp_path.glob("day=*/*.parquet")]) == 2, "unused files are deleted"

    version = kept.version()
    upkeep.step()
    assert DeltaTable(str(tmp_path)).version() == version, "no commit without changes"

    # The writer continues with the changed table.
    assert table.progress("w") == 9
    table.extend(ENDPOINT_HEALTH.arrow([health_row(30, "new")]), {"w": 10})
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().num_rows == 21


def test_a_clock_far_ahead_deletes_old_days_only_after_a_day(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = DeltaTableWriter(ENDPOINT_HEALTH, str(tmp_path))
    # The last row is of the wrong clock.
    table.extend(ENDPOINT_HEALTH.arrow([health_row(day, "e") for day in (0, 2, 10, 11, 400)]), {})
    now = Clock(datetime(2027, 2, 5, tzinfo=UTC).timestamp())

    def days_after(seconds: int) -> list[int]:
        now.after(seconds)
        Upkeep(ENDPOINT_HEALTH, str(tmp_path), days=11, clock=now).step()  # an engine that runs for minutes
        return [(day - date(2026, 1, 1)).days for (day,) in read(tmp_path, "day")]

    assert days_after(0) == [2, 10, 11, 400]
    assert days_after(86_399) == [2, 10, 11, 400]
    assert [each.message.partition(":")[0] for each in caplog.records] == ["upkeep of endpoint_health"]
    assert days_after(-390 * 86_400) == [2, 10, 11, 400], "it is corrected"
    assert days_after(390 * 86_400) == [2, 10, 11, 400]
    assert days_after(86_400) == [400]


@pytest.mark.parametrize(
    ("megabytes", "joined"),
    [
        ([1] * 7, 0),
        ([1] * 8, 8),
        ([*[1] * 8, 9], 8),
        ([*[1] * 8, 8], 16),
        ([*[1] * 8, 8, 16, 33], 32),
        ([*[20] * 8, 100], 128),
        ([*[1] * 3, *[100] * 8], 0),
        ([100] * 9, 0),
        ([*[127] * 8, 1], 0),
        ([*[1] * 7, 128, 200], 0),
    ],
)
def test_a_file_is_joined_when_the_smaller_ones_have_its_size(megabytes: list[int], joined: int) -> None:
    """Otherwise each compaction of a day rewrites the whole day."""
    assert join_bytes([each << 20 for each in megabytes], 128 << 20) >> 20 == joined


def test_a_compaction_that_hangs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (hanging := tmp_path / "python").write_text("#!/bin/sh\nexec sleep 600\n")
    hanging.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(hanging))
    monkeypatch.setattr(compaction, "_LONGEST_S", 0.01)
    with pytest.raises(RuntimeError, match="stopped after"):
        join_in_process(str(tmp_path), "", 1 << 20)


def test_the_longest_accepted_retention_keeps_every_row(tmp_path: Path) -> None:
    """Such as 999999 days, for ever: without a date no file was joined or deleted any more."""
    DeltaTableWriter(ENDPOINT_HEALTH, str(tmp_path)).extend(ENDPOINT_HEALTH.arrow([health_row(0, "e")]), {})
    longest = {each.name: each.metadata["setting"].maximum or 999_999 for each in dataclasses.fields(TableSettings)}
    for name in ("notifications_days", "deliveries_days", "history_days", "operations_days"):
        Upkeep(ENDPOINT_HEALTH, str(tmp_path), days=longest[name], unused_hours=longest["unused_files_hours"]).step()
    assert read(tmp_path, "endpoint") == [("e",)]


def test_unused_files_of_a_table_without_further_changes_are_deleted_when_they_are_old(tmp_path: Path) -> None:
    """Among them are files with payloads that an erasure has emptied."""
    DeltaTableWriter(ENDPOINT_HEALTH, str(tmp_path)).extend(ENDPOINT_HEALTH.arrow([health_row(0, "e")]), {})
    unused = tmp_path / "day=2026-01-01" / "part-of-a-killed-writer.parquet"
    unused.write_bytes(b"x")
    clock = Clock(1.0)
    upkeep = Upkeep(ENDPOINT_HEALTH, str(tmp_path), unused_hours=1, clock=clock)
    upkeep.step()
    assert unused.exists()

    os.utime(unused, (0, 0))
    clock.after(3_601)
    upkeep.step()
    assert not unused.exists()


@pytest.mark.parametrize(("spec", "moved_away"), [(ENDPOINT_HEALTH, True), (TOPICS, False)])
def test_files_removed_by_a_repair_are_deleted_after_a_week(tmp_path: Path, spec: TableSpec, moved_away: bool) -> None:
    """A table with history that was moved away stays: it may have rows that no log has."""
    day_ms = 86_400_000
    table = tmp_path / "table"
    DeltaTableWriter(spec, str(table)).extend(spec.arrow([]), {})
    old, new = table / "_damaged" / str(day_ms), table / "_damaged" / str(3 * day_ms)
    whole = tmp_path / f"table.damaged-{day_ms}"
    for each in (old, new, whole):
        each.mkdir(parents=True)
        (each / "part.parquet").write_bytes(b"x")
    Upkeep(spec, str(table), clock=Clock(9 * 86_400)).step()
    assert (old.exists(), new.exists(), whole.exists()) == (False, True, moved_away)


def test_a_damaged_file_does_not_stop_the_upkeep_of_other_days(tmp_path: Path) -> None:
    table = DeltaTableWriter(ENDPOINT_HEALTH, str(tmp_path))
    for number in range(10):
        table.extend(ENDPOINT_HEALTH.arrow([health_row(day, f"e{number}") for day in (0, 29, 30)]), {"w": number})
    unused = tmp_path / "day=2026-01-31" / "part-of-a-killed-writer.parquet"
    unused.write_bytes(b"x")
    damaged = min(tmp_path.glob("day=2026-01-01/*.parquet"))
    damaged.write_bytes(b"PAR1" + bytes(damaged.stat().st_size - 8) + b"PAR1")

    with pytest.raises(Exception, match=r"[Pp]arquet"):
        Upkeep(ENDPOINT_HEALTH, str(tmp_path), unused_hours=0).step()
    assert len([*tmp_path.glob("day=2026-01-31/*.parquet")]) == 1, "joined, and unused files deleted"
    assert len([*tmp_path.glob("day=2026-01-01/*.parquet")]) == 10


class FlakyWork(Work):
    """Fails twice, and then in another way; `enough` is set at the fourth step."""

    name = "work"

    def __init__(self) -> None:
        self.steps = 0
        self.closed = False
        self.enough = threading.Event()

    def step(self) -> bool:
        self.steps += 1
        if self.steps <= 2:
            raise InfrastructureError("Kafka is away", 1.0)
        if self.steps == 3:
            raise OSError("the disk is full")
        self.enough.set()
        return True

    def close(self) -> None:
        self.closed = True


def test_a_recorder_continues_after_failures_until_the_gate(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("arborcast.dispatch.recording.recording._PAUSE_S", 0.01)
    work, gate = FlakyWork(), StopGate()
    recorder = Recorder([(work, 0.01)], gate)
    recorder.start()
    assert work.enough.wait(120)
    gate.close()

    assert recorder.stop(120)
    assert work.closed
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [
        "work cannot be written: Kafka is away",
        "work cannot be written: the disk is full",
    ]


def test_a_work_is_behind_from_its_first_failure_until_it_has_read_everything() -> None:
    work = Mock(Work, step=Mock(side_effect=[False, OSError("the disk is full"), True, False]))
    work.name = "work"
    (scheduled,) = Recorder([(work, 0.01)], StopGate()).works
    behind = []
    for _ in range(4):
        scheduled.step()
        behind.append(scheduled.behind_s > 0)
    assert behind == [False, True, True, False]


class Counting(GatheringFollower):
    """Gathers one row for each record of `waiting`; the test sets its clock."""

    def __init__(self, interval_s: float) -> None:
        self.now, self.rows, self.written, self.reads = 0.0, 0, 0, 0
        self.waiting: list[Any] = []
        super().__init__(KafkaSettings(), "attempts", (), interval_s, 1_000_000, lambda: self.now)

    def look(self, at: float, records: int = 0) -> None:
        self.now = at
        self.waiting = [SimpleNamespace(value=b"x" * 100)] * records
        self.step()

    def read(self, limit: int, limit_bytes: int | None = None) -> Sequence[ConsumerRecord]:
        self.reads += 1
        found, self.waiting = self.waiting, []
        return found

    def take(self, records: Sequence[ConsumerRecord]) -> None:
        self.rows += len(records)

    def _opened(self) -> LogCursor:
        return cast(LogCursor, SimpleNamespace(read=self.read, ends=dict, positions={}))

    def _restart(self) -> None:
        raise AssertionError("the log was not recreated")

    def _gathered_bytes(self) -> int | None:
        return self.rows or None

    def _extend(self, positions: Mapping[int, int]) -> int:
        self.written, self.rows = self.written + self.rows, 0
        return self.written


@pytest.mark.parametrize(("interval_s", "pause_s"), [(5.0, 3.0), (1.0, 1.0)])
def test_a_log_without_new_records_is_read_seldom(interval_s: float, pause_s: float) -> None:
    follower = Counting(interval_s)
    for _ in range(11):
        follower.look(0.0)
    assert follower.reads == 1
    follower.look(pause_s)
    assert follower.reads == 2


def test_a_log_with_new_or_gathered_records_is_read_each_time() -> None:
    follower = Counting(5.0)
    for second in range(5):
        follower.look(second, records=second < 2)
    assert (follower.reads, follower.rows, follower.written) == (5, 2, 0)
    follower.look(5.0)
    assert (follower.rows, follower.written) == (0, 2)


def test_a_record_after_a_pause_is_written_within_the_interval() -> None:
    follower = Counting(5.0)
    follower.look(0.0)
    follower.look(100.0)
    for tenth in range(31):
        follower.look(100.0 + tenth / 10, records=1 if not follower.rows + follower.written else 0)
    assert follower.written == 1


def test_a_clock_ahead_does_not_end_the_receiver_s_time(tmp_path: Path) -> None:
    table = SloTable(KafkaSettings(), str(tmp_path), 1.0, lambda _: "ann", lambda _: None, 60.0)
    week_ms = 7 * 24 * 3_600_000
    for number, each in enumerate(
        (
            attempt("n1", "other", "delivered", week_ms),
            attempt("n2", "s", "parked", 100, error="connect"),
            attempt("n3", "s", "delivered", 2_000),
        )
    ):
        table.take(logged([attempts.encode(each)]))
        table.commit({0: number})
    (row,) = (each for each in SLO.read(open_table(str(tmp_path))).to_pylist() if each["subscription"] == "s")
    assert (row["receiver"], row["late"]) == (2, 0)
