"""The table `slo` between a real log and a real table, and the command that reads it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from deltalake import DeltaTable

from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs.attempts import Attempt, AttemptsLog, ErrorClass, State
from arborcast.dispatch.operations.slo import HourAttempts, attempts_by_hour
from arborcast.dispatch.recording.slo import SloTable
from arborcast.dispatch.tables import SLO
from arborcast.topic_model.topics import TopicPath
from tests.support.command import Shell
from tests.support.dispatch_job import Own, Row, wait_for_rows
from tests.support.make import Clock
from tests.support.receiver import Receiver

pytestmark = pytest.mark.kafka

NOW_MS = int(time.time() * 1000)
HOUR_MS = 3_600_000

Counts = dict[tuple[int, str], tuple[int, int, int, int]]


def attempt(name: str, to: str, late_ms: int = 0, state: State = "delivered", error: ErrorClass = "") -> Attempt:
    at_ms = NOW_MS - 60_000
    accepted_ms = at_ms - late_ms
    return Attempt(name, to, TopicPath("a"), "http://r/", 1, "p", state, accepted_ms, at_ms, 5.0, error)


@pytest.fixture
def log(kafka_settings: KafkaSettings) -> Iterator[AttemptsLog]:
    ensure_topics(kafka_settings)
    with closing(AttemptsLog(kafka_settings)) as log:
        yield log


def counts(location: Path) -> Counts:
    rows = SLO.read(DeltaTable(str(location))).to_pylist()
    return {
        (int(row["hour"].timestamp() * 1000) // HOUR_MS, row["subscription"]): (
            row["in_time"],
            row["late"],
            row["lost"],
            row["receiver"],
        )
        for row in rows
    }


def day_end(hour: int, delivered: int, failed: int) -> tuple[HourAttempts, ...]:
    """The last two hours before now, with these attempts in one of them."""
    current = NOW_MS // HOUR_MS
    counted = {hour: HourAttempts(hour * HOUR_MS, delivered, failed)}
    return tuple(counted.get(each, HourAttempts(each * HOUR_MS)) for each in (current - 1, current))


def test_hours_are_counted_once_despite_crashes_of_the_writer(
    kafka_settings: KafkaSettings, log: AttemptsLog, tmp_path: Path
) -> None:
    clock, seen = Clock(0.0), []

    def opened() -> SloTable:
        def counted(results: Mapping[str, int]) -> None:
            seen.append(dict(results))

        return SloTable(
            kafka_settings, str(tmp_path), 30, lambda name: "ann" if name == "s1" else "", counted, 60.0, clock
        )

    def step(writer: SloTable) -> None:
        clock.now += 60.0
        while writer.step():
            clock.now += 60.0

    log.add(attempt("n1", "s1"))
    log.add(attempt("n2", "s1", late_ms=40_000))
    log.add(attempt("n3", "s2", state="parked", error="connect"))
    log.add(msgspec.structs.replace(attempt("n3", "s2", state="parked", error="connect"), number=2))
    log.add(msgspec.structs.replace(attempt("n3", "s2", state="dead", error="no-result"), number=3, push=""))
    log.settle(60)
    hour = (NOW_MS - 60_000) // HOUR_MS
    with closing(opened()) as writer:
        step(writer)
        assert counts(tmp_path) == {(hour, "s1"): (1, 1, 0, 0), (hour, "s2"): (0, 0, 0, 1)}
        log.add(attempt("n4", "s1"))
        log.settle(60)
        clock.now += 1.0
        writer.step()  # read, not committed
    with closing(opened()) as writer:
        log.add(attempt("n5", "s2", late_ms=40_000))
        log.settle(60)
        step(writer)
        assert counts(tmp_path) == {(hour, "s1"): (2, 1, 0, 0), (hour, "s2"): (0, 0, 0, 2)}, "it had failed"
        assert attempts_by_hour(str(tmp_path), "s1", NOW_MS / 1000)[-2:] == day_end(hour, 3, 0)
        assert attempts_by_hour(str(tmp_path), "s2", NOW_MS / 1000)[-2:] == day_end(hour, 1, 2)
        version = DeltaTable(str(tmp_path)).version()
        step(writer)
        assert DeltaTable(str(tmp_path)).version() == version, "nothing has changed"
    assert seen == [{"in_time": 1, "late": 1, "receiver": 1}, {"in_time": 1, "receiver": 1}]
    (row,) = (each for each in SLO.read(DeltaTable(str(tmp_path))).to_pylist() if each["subscription"] == "s1")
    assert row["owner"] == "ann"


@pytest.mark.spark
def test_a_job_measures_its_deliveries(own: Own, receiver: Receiver, tmp_path: Path) -> None:
    settings, ann, bob = own.job.settings, own.name("ann"), own.name("bob")
    own.subscribe("works", receiver.url("/works"), "a", owner=ann)
    own.subscribe("refuses", receiver.url("/status/400"), "a", owner=bob)
    for _ in range(3):
        own.notify("a")

    def counted(rows: list[Row]) -> bool:
        return sum(int(row["in_time"] + row["receiver"]) for row in rows) >= 6

    rows = wait_for_rows(settings, SLO, counted, own)
    sums = {(row["subscription"], row["owner"]): [0, 0] for row in rows}
    for row in rows:
        for place, name in enumerate(("in_time", "receiver")):
            sums[row["subscription"], row["owner"]][place] += row[name]
    assert sums == {("works", ann): [3, 0], ("refuses", bob): [0, 3]}

    run = Shell(tmp_path / "arborcast.toml", settings.kafka, "slo", "--home", str(settings.home), "--owner")
    shown = run.json(ann)
    assert (shown["in_time"], shown["receiver"], shown["share"], shown["budget_left"]) == (3, 0, 1.0, 1.0)
    assert "100.000% in time" in run(ann)
    refused = run.json(bob)
    assert (refused["receiver"], refused["share"]) == (3, None)
