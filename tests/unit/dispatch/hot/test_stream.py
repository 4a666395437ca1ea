"""State of the hot path after each round of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from arborcast.core.settings import KafkaSettings
from arborcast.core.threads import pool
from arborcast.dispatch.hot import sink
from arborcast.dispatch.hot.batch_outcomes import waits
from arborcast.dispatch.hot.intake import Exclusions
from arborcast.dispatch.hot.pump import PumpRun
from arborcast.dispatch.hot.recovered import OutcomeEnds, OutcomeLogs, RecoveredDeliveries, SettledRows
from arborcast.dispatch.hot.sink import SinkJob
from arborcast.dispatch.hot.stream import BatchSize, HotPath, JobParts, Rounds
from arborcast.dispatch.logs.parked import ParkingLog, Place
from arborcast.dispatch.matching.bases import FileBase
from arborcast.dispatch.matching.filters import Conditions
from arborcast.dispatch.matching.view import SharedView
from arborcast.dispatch.monitoring.in_flight_gauge import Gauge, InFlightGauge
from arborcast.dispatch.monitoring.metrics import JobMetrics
from arborcast.dispatch.redelivery.partition_reports import PartitionReport
from arborcast.dispatch.spark.query_supervisor import StopGate, StopRequested
from arborcast.topic_model.records import notifications
from arborcast.topic_model.routing import Found
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.dispatch_job import job_settings
from tests.support.fake_journal import FakeJournal
from tests.support.fake_producer import FakeProducer, connecting
from tests.support.hot import received
from tests.support.make import notification, subscription
from tests.support.realtime_setup import SETTINGS


class View:
    read_s = 0.0

    def listen(self, listener: object) -> None: ...

    def refresh(self, timeout_s: float) -> SharedView:
        return SharedView(FileBase("base"), None, 0)


class Batches:
    """The hot path with given reports of rounds, without Spark."""

    def __init__(self, patch: pytest.MonkeyPatch, *rounds: list[PartitionReport] | Exception) -> None:
        self.gate = StopGate()
        self.written: list[Mapping[int, int]] = []
        self.jobs: list[SinkJob] = []
        self._rounds = list(rounds)
        patch.setattr(OutcomeLogs, "ends", lambda logs: OutcomeEnds())
        patch.setattr(JobParts, "exclusions", lambda parts: Exclusions())
        patch.setattr(JobParts, "take_reports", lambda parts, reports: None)
        patch.setattr(HotPath, "_run", lambda hot, frame, job: self._round(job))
        settings = job_settings(Path("unused"), KafkaSettings())
        unused = cast(Any, None)
        self.hot = HotPath(JobParts(unused, settings, cast(Any, View()), unused, self.gate, JobMetrics(), unused))
        patch.setattr(self.hot, "_write", self.written.append)

    def _round(self, job: SinkJob) -> list[PartitionReport]:
        self.jobs.append(job)
        found = self._rounds.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


def report(rest: bool = False, **done: int) -> PartitionReport:
    places = {int(partition[1:]): offset for partition, offset in done.items()}
    passed = {partition: b"%d" % offset for partition, offset in places.items()}
    return PartitionReport(rest=rest, done=places, passed=passed)


def test_each_round_writes_the_positions_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Batches(monkeypatch, [report(rest=True, p0=7), report(p1=3)], [report(p0=9)])

    batches.hot.run_batch(cast(Any, None), 2)

    assert {job.number for job in batches.jobs} == {1}
    assert batches.written == [{0: 8, 1: 4}, {0: 10}]
    assert batches.hot.positions == {0: 10, 1: 4}
    assert [job.done for job in batches.jobs] == [{}, {0: 7, 1: 3}]
    assert [job.passed for job in batches.jobs] == [{}, {0: b"7", 1: b"3"}]


def test_a_failed_batch_keeps_the_positions_of_its_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Batches(monkeypatch, [report(rest=True, p0=7)], RuntimeError("a worker died for the fourth time"))
    with pytest.raises(RuntimeError, match="fourth time"):
        batches.hot.run_batch(cast(Any, None), 0)
    assert batches.hot.positions == {0: 8}
    assert not batches.hot.clean, "pushes behind the positions were started"

    stopped = Batches(monkeypatch, [report(rest=True, p0=7)])
    monkeypatch.setattr(JobParts, "take_reports", lambda parts, reports: stopped.gate.close())
    with pytest.raises(StopRequested):
        stopped.hot.run_batch(cast(Any, None), 0)
    assert stopped.written == [{0: 8}]
    assert stopped.hot.clean


def test_a_pause_ends_a_batch_between_two_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Batches(monkeypatch, [report(rest=True, p0=7)])
    monkeypatch.setattr(batches.gate, "wait_empty", lambda: None)
    monkeypatch.setattr(JobParts, "take_reports", lambda parts, reports: batches.hot.pause())
    with pytest.raises(StopRequested):
        batches.hot.run_batch(cast(Any, None), 0)
    assert batches.hot.positions == {0: 8}
    assert batches.hot.clean


def test_a_stop_ends_the_wait_of_a_pause_for_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Batches(monkeypatch)
    with pool("pause", 1) as threads, batches.gate.batch():
        pause = threads.submit(batches.hot.pause)
        batches.gate.close()
        with pytest.raises(StopRequested):
            pause.result(60)


def test_a_round_that_leaves_deliveries_has_begun_pushes_behind_its_position(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Batches(monkeypatch, [PartitionReport(done={0: 7}, left=True)])
    batches.hot.run_batch(cast(Any, None), 0)
    assert batches.written == [{0: 8}]
    assert not batches.hot.clean, "the next start reads the rows of these pushes"


@pytest.mark.parametrize("per_second", [50, 400, 3_000, 20_000, 1_000_000])
def test_the_duration_of_rounds_converges(per_second: int) -> None:
    rounds = Rounds(3.0)
    for _ in range(20):
        rounds.measured(rounds.most / per_second)
    assert rounds.most / per_second == pytest.approx(3.0, rel=0.05)
    if per_second == 20_000:
        rounds.measured(rounds.most / 400)
        assert rounds.most / 400 == pytest.approx(3.0, rel=0.05), "adapted after one round"


@pytest.mark.parametrize(("took_s", "least", "most"), [(0.0, 1, 4_000), (1e9, 100, 100)])
def test_bounds_of_the_size_of_a_round(took_s: float, least: int, most: int) -> None:
    rounds = Rounds(3.0)
    rounds.measured(took_s)
    assert least <= rounds.most <= most


MANY = [subscription(f"s{number}") for number in range(100)]


def job_for(*recipients: Subscription) -> SinkJob:
    """A batch whose notifications have these recipients."""
    view = SimpleNamespace(open=lambda: SimpleNamespace(of=lambda _: Found(recipients, [])), control=0)
    return SinkJob(settings=SETTINGS, number=1, view=cast(Any, view))


def worker_with(
    run: Callable[[PumpRun, Callable[[float], None]], None] | None = None, gauge: str = "", **journal: object
) -> Any:
    """A worker whose pump is `run`."""
    parked = ParkingLog(KafkaSettings(), connecting(FakeProducer()))
    done = {"begin": lambda _: None, "matched": lambda *_: None, "catch_up": lambda: None}
    written = SimpleNamespace(**{"parked": parked, "write_due": lambda: True, "due_s": lambda: 0.0, **done, **journal})
    pump = SimpleNamespace(run=run, turn=lambda run: 0.0, unanswered=0)
    parts = {"conditions": Conditions(), "pump": pump, "gauge": Gauge(gauge)}
    return SimpleNamespace(journal=written, settled=lambda: None, rest=lambda: None, **parts)


def test_a_round_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    value = notifications.encode(notification())[1]
    monkeypatch.setattr(sink, "_MOST_BYTES", 3 * len(value))
    taken, done, rest = list[int](), dict[int, int](), True
    while rest:
        task = sink.round_task(job_for(), worker_with(), RecoveredDeliveries())
        rows = sink.RoundRows([(bytearray(value), 0, offset) for offset in range(8)], done, 10_000)
        task._take(rows)
        task.write_evaluations()
        assert rows.over
        taken.append(task.intake.outcomes.report.notifications)
        done, rest = dict(rows.done), rows.rest
    assert taken == [3, 3, 2]


def test_the_rows_read_for_later_rounds_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "_MOST_BYTES", 30)
    rows = sink.RoundRows([(bytearray(10), 0, offset) for offset in range(100)], {0: 4}, 10_000)
    while rows.first() is not None:
        rows.drop_first()
    assert rows.done == {0: 7}
    assert (rows.read, rows.size, rows.unread) == (12, 120, True)


def read_by(tasks: int, rows: int, size: int, unread: bool = False) -> list[PartitionReport]:
    return [PartitionReport(read=rows, size=size, unread=unread, rest=unread) for _ in range(tasks)]


def test_the_number_of_rows_in_a_batch_follows_their_size() -> None:
    size = BatchSize(20_000)
    size.read(read_by(4, 5_000, 100 << 20))
    assert not size.outdated, "each task has read all rows"
    size.read(read_by(4, 128, 512 << 20, unread=True))
    assert (size.rows, size.outdated) == (4 * 16, True), "of 4 MiB each, with 64 MiB for a task"
    size.outdated = False
    size.read(read_by(4, 3, 300))
    size.read(read_by(4, 16, 32 << 20))
    assert not size.outdated, "the batch is not full, or its rows are not small"
    size.read(read_by(4, 16, 16_000))
    assert (size.rows, size.outdated) == (20_000, True)
    size.read(read_by(1, 4, 512 << 20, unread=True))
    assert size.rows == 1


def pushed(worker: Any, monkeypatch: pytest.MonkeyPatch, *offsets: int) -> list[PartitionReport]:
    """The reports of a worker on messages for many at these offsets."""
    monkeypatch.setattr(sink, "worker_for", lambda *_: worker)
    value = bytearray(notifications.encode(notification("n", "a", accepted_ms=1 << 50))[1])
    reports: list[PartitionReport] = []
    accumulator: Any = SimpleNamespace(add=reports.extend)
    sink.push_partition(job_for(*MANY), accumulator, [(value, 0, offset) for offset in offsets])
    return reports


def test_a_late_recipient_does_not_overtake_its_parked_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, overtaken = FakeJournal(), list[str]()

    def run(run: PumpRun, between: Callable[[float], None]) -> None:
        first = received("first", batch=0, accepted_ms=1 << 50)
        run.outcomes.write_unpushed(MANY[7], (first,), waits("the pushes before it failed"))
        run.fill(100)
        overtaken.extend(each.id for each, _ in run.lanes.waiting())

    worker = worker_with(run, write=rows.write)
    park = worker.journal.parked.park
    monkeypatch.setattr(rows, "park", lambda delivery, message, tries, row, turn: park(delivery, message, tries, turn))
    pushed(worker, monkeypatch, 1)
    assert len(overtaken) == 99
    assert "s7" not in overtaken


def test_a_stop_of_the_job_leaves_deliveries_of_a_message_for_many(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver, begun = InFlightGauge(tmp_path / "pushes"), list[str]()

    def run(run: PumpRun, between: Callable[[float], None]) -> None:
        while not run.lanes.empty:
            run.fill(10)
            begun.extend(each.id for each, _ in run.lanes.waiting())
            for name in begun:
                run.lanes.drain(name)
            run.lanes.take()
            driver.show_stop(True)
            driver.clear()
            between(1.0)

    reports = pushed(worker_with(run, driver.file), monkeypatch, 5, 6)

    assert len(begun) == 10
    assert [(each.done, each.left) for each in reports] == [({0: 4}, True)]


def test_a_repeated_task_keeps_the_places_of_an_earlier_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a message would be parked behind a later one, or a timely one pushed behind a newer one."""
    newest = {("s", TopicPath("a")): (0, 6)}
    known = RecoveredDeliveries(
        frozenset({("s", "n1")}), frozenset({("s", "n6")}), numbers={0: [(2, 7), (6, 8)]}, newest=newest
    )
    asked: list[object] = []

    def parked(*arguments: object) -> list[tuple[str, str, Place]]:
        asked.append(arguments[-1])
        return [("t", "n5", Place(7, 0, 5))]

    monkeypatch.setattr(sink, "_is_repeated", lambda: True)
    monkeypatch.setattr(sink, "parked_in_batch", parked)
    settled = SettledRows(frozenset({("s", "n3")}), {}, frozenset())
    monkeypatch.setattr(sink, "settled_in_batch", lambda *_: settled)
    recovered = cast(Any, SimpleNamespace(value=known))
    before, held, _ = sink._before(SinkJob(settings=SETTINGS, number=9, view=cast(Any, None), recovered=recovered))

    assert asked == [{7, 8}]
    assert held == {"t"}
    assert sorted(before.settled) == [("s", "n1"), ("s", "n3")]
    assert sorted(before.unwritten) == [("s", "n6"), ("t", "n5")]
    assert [before.number(0, offset) for offset in (5, 6, 7)] == [7, 8, None]
    assert before.has_newer("s", TopicPath("a"), 0, 5)
