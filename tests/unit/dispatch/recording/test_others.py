from __future__ import annotations

import threading
import tracemalloc
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from deltalake import DeltaTable

from arborcast.dispatch.delivery.health import Health
from arborcast.dispatch.recording import endpoint_health
from arborcast.dispatch.recording.endpoint_health import HealthHistory
from arborcast.dispatch.recording.follower import Work
from arborcast.dispatch.recording.recording import Recorder
from arborcast.dispatch.recording.state_tables import RoutesSnapshot
from arborcast.dispatch.recording.upkeep import Upkeep
from arborcast.dispatch.spark.query_supervisor import StopGate
from arborcast.dispatch.tables import ENDPOINT_HEALTH
from arborcast.dispatch.tables.delta_table import DeltaTableWriter
from arborcast.topic_model.projections.suspensions import State
from arborcast.topic_model.routing.table import Route
from arborcast.topic_model.subscriptions import EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath

SICK = Health(breaker="open", degraded=True, failures=3, relapses=1, probe_at_ms=7_000)


def history(location: Path) -> list[tuple[object, ...]]:
    found = DeltaTable(str(location)).to_pyarrow_table().sort_by("at").to_pylist()
    return [(row["endpoint"], row["breaker"], row["sick"], row["failures"]) for row in found]


def test_health_has_a_row_for_each_change_and_none_for_what_stays(tmp_path: Path) -> None:
    known: dict[str, Health] = {"http://bad/": SICK, "http://fair/": Health(failures=1)}
    now = iter(range(1, 100))
    recorded = HealthHistory(str(tmp_path), lambda: known, clock=lambda: float(next(now)))
    recorded.step()
    known["http://bad/"] = Health(breaker="half-open", degraded=True, failures=4)
    recorded.step()
    known["http://bad/"] = Health(degraded=True)
    recorded.step()
    del known["http://bad/"]
    recorded.step()
    recorded.step()

    assert history(tmp_path) == [
        ("http://bad/", "open", True, 3),
        ("http://bad/", "closed", True, 0),
        ("http://bad/", "closed", False, 0),
    ]


def test_health_goes_on_to_be_recorded_when_the_clock_was_put_back(tmp_path: Path) -> None:
    known = {"http://bad/": SICK}
    now = iter((7_200.0, 3_600.0))
    recorded = HealthHistory(str(tmp_path), lambda: known, clock=lambda: next(now))
    recorded.step()
    known.clear()
    recorded.step()

    assert [breaker for _, breaker, _, _ in history(tmp_path)] == ["closed", "open"]


def test_health_after_a_restart_is_compared_with_the_table(tmp_path: Path) -> None:
    HealthHistory(str(tmp_path), lambda: {"http://bad/": SICK}, clock=lambda: 1.0).step()
    again = HealthHistory(str(tmp_path), lambda: {"http://bad/": SICK}, clock=lambda: 2.0)
    again.step()
    assert len(history(tmp_path)) == 1

    HealthHistory(str(tmp_path), dict, clock=lambda: 3.0).step()
    assert history(tmp_path)[-1] == ("http://bad/", "closed", False, 0)


def test_a_start_takes_one_row_of_each_endpoint_however_often_it_changed(tmp_path: Path) -> None:
    rows = [
        endpoint_health._row("http://flaps/", endpoint_health._State("open", sick), SICK, second * 1_000)
        for second, sick in enumerate([True, False] * 5_000)
    ]
    DeltaTableWriter(ENDPOINT_HEALTH, str(tmp_path)).append(ENDPOINT_HEALTH.arrow(rows), "endpoint-health", 1)
    known = {"http://flaps/": msgspec.structs.replace(SICK, degraded=False)}
    recorded = HealthHistory(str(tmp_path), lambda: known)
    del rows
    tracemalloc.start()
    try:
        recorded.step()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(history(tmp_path)) == 10_000, "nothing has changed"
    assert peak < 1_000_000


def test_routes_are_written_when_something_changed_and_only_so_many(tmp_path: Path) -> None:
    subscription = Subscription("s", EndpointReference("http://e/"), paused=True)
    routes: list[tuple[Route, State]] = [(Route(TopicPath(name), "//.", subscription), "suspended") for name in "abc"]
    version, asked = [1], []

    def ask(limit: int) -> list[tuple[Route, State]]:
        asked.append(limit)
        return routes[:limit]

    table = RoutesSnapshot(str(tmp_path), 2, lambda: version[0], ask)
    table.step()
    table.step()
    RoutesSnapshot(str(tmp_path), 2, lambda: version[0], ask).step()
    assert asked == [2]
    del routes[0]
    version[0] = 2
    table.step()

    found = DeltaTable(str(tmp_path)).to_pyarrow_table().sort_by("topic").to_pylist()
    assert [(row["topic"], row["expression"], row["state"]) for row in found] == [
        ("b", "//.", "suspended"),
        ("c", "//.", "suspended"),
    ]


def test_routes_are_not_written_again_after_a_renewal(tmp_path: Path) -> None:
    subscription = Subscription("s", EndpointReference("http://e/"))
    routes: list[tuple[Route, State]] = [(Route(TopicPath("a"), "//.", subscription), "active")]
    version = [1]
    table = RoutesSnapshot(str(tmp_path), 2, lambda: version[0], lambda limit: routes)
    table.step()
    written = DeltaTable(str(tmp_path)).version()
    for version[0] in (2, 3):
        table.step()
    assert DeltaTable(str(tmp_path)).version() == written
    routes[0] = routes[0][0], "paused"
    version[0] = 4
    table.step()
    assert DeltaTable(str(tmp_path)).version() == written + 1


def health_row(day: int, endpoint: str) -> dict[str, object]:
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day)
    row = {"day": at.date(), "at": at, "endpoint": endpoint, "breaker": "open", "sick": True}
    return row | {"failures": 1, "relapses": 1, "probe_at": None}


def test_upkeep_joins_files_and_takes_old_days_out(tmp_path: Path) -> None:
    table = DeltaTableWriter(ENDPOINT_HEALTH, str(tmp_path))
    for number in range(10):
        rows = ENDPOINT_HEALTH.arrow([health_row(day, f"e{number}") for day in (0, 30)])
        table.append(rows, "w", number)
    now = datetime(2026, 2, 1, tzinfo=UTC).timestamp()

    upkeep = Upkeep(ENDPOINT_HEALTH, str(tmp_path), days=10, unused_hours=0, clock=lambda: now)
    upkeep.step()

    kept = DeltaTable(str(tmp_path))
    found = kept.to_pyarrow_table().to_pylist()
    assert sorted(row["endpoint"] for row in found) == [f"e{number}" for number in range(10)]
    assert {row["day"] for row in found} == {date(2026, 1, 31)}
    assert len(kept.file_uris()) == 1
    assert len([*tmp_path.glob("day=*/*.parquet")]) == 1, "what is not used any more is deleted"

    version = kept.version()
    upkeep.step()
    assert DeltaTable(str(tmp_path)).version() == version, "nothing to do is no commit"

    # The writer goes on with the table as it is now.
    assert not table.append(ENDPOINT_HEALTH.arrow([health_row(30, "again")]), "w", 9)
    assert table.append(ENDPOINT_HEALTH.arrow([health_row(30, "new")]), "w", 10)
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().num_rows == 11


class FlakyWork(Work):
    """Fails the first time, says when it has been done three times."""

    name = "work"

    def __init__(self, fails: int = 0) -> None:
        self.steps = 0
        self.closed = False
        self.fails = fails
        self.enough = threading.Event()

    def step(self) -> bool:
        self.steps += 1
        if self.steps <= self.fails:
            raise OSError("the disk is full")
        if self.steps >= 3:
            self.enough.set()
        return True

    def close(self) -> None:
        self.closed = True


def test_recorder_goes_on_after_a_failure_and_ends_with_the_gate(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("arborcast.dispatch.recording.recording._PAUSE_S", 0.01)
    work, gate = FlakyWork(fails=2), StopGate()
    recorder = Recorder([(work, 0.01)], gate)
    recorder.start()
    assert work.enough.wait(120)
    gate.close()

    assert recorder.stop(120)
    assert work.closed
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [
        "work cannot be written: the disk is full"
    ]
