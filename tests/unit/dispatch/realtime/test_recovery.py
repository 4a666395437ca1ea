"""The start state from the log `progress`, the recalled deliveries, and the progress written by a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.hot.recovered import NOTHING, SettledRows, StartState
from arborcast.dispatch.logs.attempts import NO_BATCH, RUN_NUMBERS
from arborcast.dispatch.logs.parked import Place
from arborcast.dispatch.realtime import recovery
from arborcast.dispatch.realtime.messages import WorkerProgress
from arborcast.dispatch.realtime.mode_controller import ModeController
from arborcast.dispatch.realtime.recovery import Recovery, next_run
from arborcast.dispatch.redelivery.partition_reports import PartitionReport
from arborcast.topic_model.topics import TopicPath
from tests.support.dispatch_job import job_settings

RUN = 7 * RUN_NUMBERS
EARLIER_RUN = 5 * RUN_NUMBERS
APPENDED_MS = {0: 1_000, 1: 2_000, 2: 3_000}


class Stopped:
    """A stopped job with these ends of partitions and this progress of its workers."""

    def __init__(
        self, patch: pytest.MonkeyPatch, home: Path, ends: Mapping[int, int], known: list[WorkerProgress]
    ) -> None:
        self.ends = ends
        self.begins = dict.fromkeys(ends, 0)
        self.known = {each.partition: each for each in known}
        self.written: list[WorkerProgress] = []
        self.newest, self.parked_newest = EARLIER_RUN + 2, EARLIER_RUN + 3
        self.redriven_newest = self.parked_newest
        self.parked_read = False
        self.recalled: list[tuple[int, Mapping[int, int], int]] = []
        self.settings = job_settings(home, KafkaSettings())
        self.topic = ""
        log = SimpleNamespace(beginnings=lambda: self.begins, ends=lambda: self.ends, topic_id=lambda: self.topic)
        patch.setattr(recovery, "LogScan", lambda kafka, name: nullcontext(log))
        patch.setattr(recovery, "appended_ms", lambda kafka, positions: {each: APPENDED_MS[each] for each in positions})
        patch.setattr(recovery, "settled_since", self._recall)
        self.letters_removed: list[tuple[object, ...]] = []
        patch.setattr(recovery, "remove_letters_without_rows", lambda kafka, *where: self.letters_removed.append(where))
        progress = SimpleNamespace(
            write=self._write, settle=lambda timeout_s: None, close=lambda: None, is_late=lambda: False
        )
        patch.setattr(recovery, "ProgressLog", lambda kafka: progress)
        patch.setattr(recovery, "newest_batch", lambda kafka: self.newest)
        self.reported: list[PartitionReport] = []
        parked = SimpleNamespace(
            parked_behind=self._parked_behind,
            newest_batch=lambda redriven: self.redriven_newest if redriven else self.parked_newest,
            batch_done=self.reported.extend,
        )
        self.listener = SimpleNamespace(known=self.known, damaged=False)
        self.parts = cast(Any, parked), cast(Any, self.listener)
        self.recovery = Recovery(self.settings, *self.parts)

    def tolerant(self) -> Recovery:
        """With a setting that accepts lost notifications."""
        dispatch = dataclasses.replace(self.settings.dispatch, fail_on_data_loss=False)
        return Recovery(dataclasses.replace(self.settings, dispatch=dispatch), *self.parts)

    def _write(self, progress: WorkerProgress) -> None:
        self.written.append(progress)
        self.known[progress.partition] = progress

    def _recall(self, kafka: KafkaSettings, first: int, behind_ms: Mapping[int, int], partitions: int) -> SettledRows:
        assert self.parked_read, "otherwise a delivery that ends between the two is missed"
        self.recalled.append((first, behind_ms, partitions))
        newest = {("s", TopicPath("a")): (0, 510), ("s", TopicPath("b")): (0, 499)}
        return SettledRows(frozenset({("s", "n")}), newest, frozenset({"answered 410"}))

    def _parked_behind(self, positions: Mapping[int, int]) -> list[tuple[str, str, Place]]:
        self.parked_read = True
        return [("s", f"parked in {number}", Place(RUN, number, at)) for number, at in positions.items()]


Stop = Callable[[Mapping[int, int], list[WorkerProgress]], Stopped]


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stop:
    return partial(Stopped, monkeypatch, tmp_path)


def test_nothing_is_recalled_for_idle_partitions(stop: Stop) -> None:
    known = [WorkerProgress(RUN, 0, 500, RUN, clean=True), WorkerProgress(RUN, 1, 30, EARLIER_RUN)]
    stopped = stop({0: 520, 1: 30}, known)

    begin = stopped.recovery.start_state()

    assert begin == StartState({0: 500, 1: 30}, NOTHING, RUN)
    assert stopped.recalled == []


def test_after_a_crash_partitions_with_a_begun_run_are_recalled(stop: Stop) -> None:
    known = [
        WorkerProgress(RUN, 0, 500, RUN),
        WorkerProgress(RUN, 1, 30, EARLIER_RUN),
        WorkerProgress(RUN, 2, 60, EARLIER_RUN, clean=True),
    ]
    stopped = stop({0: 520, 1: 30, 2: 70}, known)

    begin = stopped.recovery.start_state()

    assert (begin.positions, begin.newest, begin.since) == ({0: 500, 1: 30, 2: 60}, RUN, RUN)
    assert stopped.recalled == [(RUN, {0: 1_000}, 3)]
    assert [each.gone for each in stopped.reported] == [{"answered 410"}]
    assert begin.recovered.settled == {("s", "n")}
    assert begin.recovered.newest == {("s", TopicPath("a")): (0, 510)}, "the other messages are not read again"
    assert begin.recovered.unwritten == {("s", "parked in 0")}
    assert stopped.letters_removed == [(RUN, {0: 500}, 1_000, {("s", "n"), ("s", "parked in 0")})]


@pytest.mark.parametrize(("task", "batches"), [(-1, True), (0, False)])
def test_a_start_continues_in_the_interrupted_mode(stop: Stop, task: int, batches: bool) -> None:
    stopped = stop({0: 520}, [WorkerProgress(RUN, 0, 500, RUN, task=task)])
    begin = stopped.recovery.start_state()
    assert begin.batches == batches
    assert not begin.advanced({0: 510}, {0: 520}, RUN).batches, "a change of mode is kept"


@pytest.mark.parametrize(("at", "batches"), [(510, True), (520, False)])
def test_batches_of_another_size_continue_an_interrupted_one(stop: Stop, at: int, batches: bool) -> None:
    """In real time, older timely messages of its rest would be pushed behind newer ones."""
    stopped = stop({0: 520}, [WorkerProgress(RUN, 0, 500, RUN, task=-1)])
    controller = ModeController.__new__(ModeController)
    state = {
        "_lock": nullcontext(),
        "_parts": SimpleNamespace(settings=stopped.settings),
        "_hot": SimpleNamespace(pause=lambda: None, clean=True, positions={0: at}),
        "_realtime": SimpleNamespace(listener=stopped.listener),
        "_recovery": stopped.recovery,
        "_began": stopped.recovery.start_state(),
        "_begin": None,
        "_run": RUN + 1,
        "_returns_to_realtime": False,
        "mode": "batch",
        "supervisor": SimpleNamespace(planned_restart=nullcontext),
    }
    vars(controller).update(state)

    controller._switch("batch")

    begin = controller._begin
    assert begin is not None
    assert (begin.positions, begin.batches) == ({0: at}, batches)


def test_after_partitions_were_added_all_are_recalled(stop: Stop) -> None:
    known = [WorkerProgress(RUN, 0, 5, RUN, clean=True), WorkerProgress(RUN, 1, 30, RUN)]
    stopped = stop({0: 5, 1: 40, 2: 9}, known)
    stopped.recovery.start_state()
    assert stopped.recalled == [(RUN, dict.fromkeys((0, 1, 2), 2_000), 3)]


def test_the_progress_of_a_run_at_its_start_and_clean_end(stop: Stop) -> None:
    stopped = stop({0: 5, 1: 30}, [WorkerProgress(EARLIER_RUN, 0, 5, EARLIER_RUN, clean=True)])
    begin = stopped.recovery.start_state()
    stopped.recovery.write_start(RUN, begin)
    assert stopped.written == [WorkerProgress(RUN, 0, 5, RUN, task=-1), WorkerProgress(RUN, 1, 0, RUN, task=-1)]
    stopped.written.clear()
    stopped.recovery.write_clean(RUN, begin, {0: 5, 1: 30})
    assert stopped.written == [
        WorkerProgress(RUN, 0, 5, RUN, clean=True, task=-1),
        WorkerProgress(RUN, 1, 30, RUN, clean=True, task=-1),
    ]


def test_the_progress_of_a_run_behind_an_unclean_one(stop: Stop) -> None:
    known = [WorkerProgress(EARLIER_RUN, 0, 5, EARLIER_RUN), WorkerProgress(EARLIER_RUN, 1, 30, EARLIER_RUN)]
    stopped = stop({0: 5, 1: 40}, known)
    begin = stopped.recovery.start_state()
    stopped.recovery.write_start(RUN, begin)
    assert [each.since for each in stopped.written] == [RUN, EARLIER_RUN], "nothing is behind the first position"
    stopped.written.clear()
    stopped.recovery.write_positions(RUN, begin, {1: 35})
    stopped.recovery.write_clean(RUN, begin, {0: 5, 1: 35})
    assert stopped.written == [
        WorkerProgress(RUN, 1, 35, EARLIER_RUN, task=-1),
        WorkerProgress(RUN, 0, 5, RUN, clean=True, task=-1),
    ]
    stopped.written.clear()
    stopped.recovery.write_positions(RUN, begin, {1: 40})
    assert stopped.written == [WorkerProgress(RUN, 1, 40, RUN, task=-1)]


def test_run_numbers_increase_also_without_the_log_of_the_progress(stop: Stop) -> None:
    following = [next_run(newest) for newest in (-1, 0, 17, RUN, RUN + 5)]
    assert following == [each * RUN_NUMBERS for each in (0, 1, 1, 8, 8)]
    stopped = stop({0: 5}, [WorkerProgress(RUN, 0, 5, RUN, clean=True)])
    assert stopped.recovery.start_state().newest == RUN
    stopped.known.clear()
    with pytest.raises(InfrastructureError, match="progress has no positions, although pushes were made"):
        stopped.recovery.start_state()
    assert stopped.tolerant().start_state() == StartState({0: 0}, NOTHING, EARLIER_RUN + 3)
    stopped.known[0] = WorkerProgress(EARLIER_RUN, 0, 5, EARLIER_RUN)
    stopped.listener.damaged = True  # the record of the newest run
    assert stopped.recovery.start_state().newest == EARLIER_RUN + 3


def test_redriven_letters_of_a_backup_do_not_prevent_the_first_start(stop: Stop) -> None:
    stopped = stop({0: 5}, [])
    stopped.newest = stopped.parked_newest = NO_BATCH
    assert stopped.recovery.start_state() == StartState({0: 0}, NOTHING, EARLIER_RUN + 3)


def test_a_first_start_follows_the_settings(stop: Stop) -> None:
    stopped = stop({0: 5, 1: 30}, [])
    stopped.newest = stopped.parked_newest = NO_BATCH
    dispatch = dataclasses.replace(stopped.settings.dispatch, starting_offsets="latest")
    latest = dataclasses.replace(stopped.settings, dispatch=dispatch)
    first = Recovery(latest, *stopped.parts)
    assert first.start_state().positions == {0: 5, 1: 30}
    stopped.listener.damaged = True
    assert first.start_state().positions == {0: 0, 1: 0}, "the positions are in damaged records"
    stopped.listener.damaged = False
    stopped.known[0] = WorkerProgress(RUN, 0, 2, RUN, clean=True)
    assert first.start_state().positions == {0: 2, 1: 0}, "an added partition is read from its beginning"


def test_a_position_outside_of_the_log(stop: Stop) -> None:
    stopped = stop({0: 50}, [WorkerProgress(RUN, 0, 20, RUN, clean=True)])
    stopped.begins = {0: 30}
    with pytest.raises(InfrastructureError, match="reaches from 30 to 50, and the job is at 20"):
        stopped.recovery.start_state()
    assert stopped.tolerant().start_state().positions == {0: 30}


def test_a_position_in_a_log_that_was_created_again(stop: Stop) -> None:
    """Its notifications before the position were omitted."""
    stopped = stop({0: 50}, [WorkerProgress(RUN, 0, 20, RUN, clean=True)])
    stopped.topic = "first"
    stopped.recovery.write_start(RUN, stopped.recovery.start_state())
    assert stopped.written == [WorkerProgress(RUN, 0, 20, RUN, task=-1, topic="first")]
    stopped.topic = "second"
    with pytest.raises(InfrastructureError, match="the job is at 20 of an earlier log"):
        stopped.recovery.start_state()
    again = stopped.tolerant().start_state()
    assert (again.positions, again.advanced({0: 9}, {0: 0}, RUN).topic) == ({0: 0}, "second")
