"""Where a start begins, by `progress` and by Spark's checkpoint, and what it recalls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.hot.earlier import NOTHING, Beginning
from arborcast.dispatch.logs.attempts import NO_BATCH
from arborcast.dispatch.logs.parked import Place
from arborcast.dispatch.realtime import resuming
from arborcast.dispatch.realtime.messages import WorkerProgress
from arborcast.dispatch.realtime.resuming import Resuming
from arborcast.dispatch.spark.checkpoint_repair import RANGE
from tests.support.dispatch_job import job_settings

RUN = 7 * RANGE
EARLIER_RUN = 5 * RANGE
APPENDED_MS = {0: 1_000, 1: 2_000, 2: 3_000}


class Stopped:
    """A job that was stopped, with partitions that end at these offsets and these words of workers."""

    def __init__(
        self, patch: pytest.MonkeyPatch, home: Path, ends: Mapping[int, int], known: list[WorkerProgress]
    ) -> None:
        self.ends = ends
        self.begins = dict.fromkeys(ends, 0)
        self.known = {each.partition: each for each in known}
        self.said: list[WorkerProgress] = []
        self.recalled: list[tuple[int, Mapping[int, int], int]] = []
        self.settings = job_settings(home, KafkaSettings())
        log = SimpleNamespace(beginnings=lambda: self.begins, ends=lambda: self.ends)
        patch.setattr(resuming, "notifications", lambda kafka: nullcontext(log))
        patch.setattr(resuming, "HadoopFolder", lambda spark, location: SimpleNamespace(highest=self._highest))
        patch.setattr(resuming, "appended_ms", lambda kafka, positions: {each: APPENDED_MS[each] for each in positions})
        patch.setattr(resuming, "recall_since", self._recall)
        progress = SimpleNamespace(tell=self._tell, settle=lambda timeout_s: None, close=lambda: None)
        patch.setattr(resuming, "ProgressLog", lambda kafka: progress)
        parked = SimpleNamespace(parked_behind=self._parked_behind, newest_batch=lambda: NO_BATCH)
        hearing = SimpleNamespace(known=self.known)
        self.resuming = Resuming(cast(Any, None), self.settings, cast(Any, parked), cast(Any, hearing))

    def commit(self, batch: int, end: Mapping[int, int]) -> None:
        """A batch is planned, and done."""
        plan = {self.settings.kafka.topic("notifications"): {str(number): at for number, at in end.items()}}
        for kind, lines in (
            ("offsets", ("v1", '{"batchTimestampMs":1}', json.dumps(plan))),
            ("commits", ("v1", '{"nextBatchWatermarkMs":0}')),
        ):
            folder = Path(self.settings.checkpoint("push")) / kind
            folder.mkdir(parents=True, exist_ok=True)
            (folder / str(batch)).write_text("\n".join(lines))

    def _highest(self, kind: str) -> int | None:
        folder = Path(self.settings.checkpoint("push")) / kind
        return max((int(each.name) for each in folder.glob("*")), default=None)

    def _tell(self, progress: WorkerProgress) -> None:
        self.said.append(progress)
        self.known[progress.partition] = progress

    def _recall(
        self, kafka: KafkaSettings, first: int, behind_ms: Mapping[int, int], partitions: int, timeout_s: float
    ) -> frozenset[tuple[str, str]]:
        self.recalled.append((first, behind_ms, partitions))
        return frozenset({("s", "n")})

    def _parked_behind(self, positions: Mapping[int, int]) -> list[tuple[str, str, Place]]:
        return [("s", f"parked in {number}", Place(RUN, number, at)) for number, at in positions.items()]


def test_a_partition_that_was_idle_for_a_week_has_nothing_behind_its_position(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = [WorkerProgress(RUN, 0, 500, RUN, clean=True), WorkerProgress(RUN, 1, 30, EARLIER_RUN)]
    stopped = Stopped(monkeypatch, tmp_path, {0: 520, 1: 30}, known)

    begin = stopped.resuming.realtime_was_last()

    assert begin == Beginning({0: 500, 1: 30}, NOTHING, RUN)
    assert stopped.recalled == []


def test_after_a_crash_only_partitions_in_which_something_was_begun_are_recalled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = [
        WorkerProgress(RUN, 0, 500, RUN),
        WorkerProgress(RUN, 1, 30, EARLIER_RUN),
        WorkerProgress(RUN, 2, 60, EARLIER_RUN, clean=True),
    ]
    stopped = Stopped(monkeypatch, tmp_path, {0: 520, 1: 30, 2: 70}, known)

    begin = stopped.resuming.realtime_was_last()

    assert begin is not None
    assert (begin.positions, begin.newest, begin.since) == ({0: 500, 1: 30, 2: 60}, RUN, RUN)
    assert stopped.recalled == [(RUN, {0: 1_000}, 3)]
    assert begin.earlier.settled == {("s", "n")}
    assert begin.earlier.unwritten == {("s", "parked in 0")}


def test_with_more_partitions_than_before_a_topic_may_be_in_another_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = [WorkerProgress(RUN, 0, 5, RUN, clean=True), WorkerProgress(RUN, 1, 30, RUN)]
    stopped = Stopped(monkeypatch, tmp_path, {0: 5, 1: 40, 2: 9}, known)
    assert stopped.resuming.realtime_was_last() is not None
    assert stopped.recalled == [(RUN, dict.fromkeys((0, 1, 2), 2_000), 3)]


def test_a_run_begins_where_it_says_and_is_clean_when_all_its_tasks_have_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stopped = Stopped(
        monkeypatch, tmp_path, {0: 5, 1: 30}, [WorkerProgress(EARLIER_RUN, 0, 5, EARLIER_RUN, clean=True)]
    )
    begin = stopped.resuming.realtime_was_last()
    assert begin is not None
    stopped.resuming.say_where(RUN, begin)
    assert stopped.said == [WorkerProgress(RUN, 0, 5, RUN, task=-1), WorkerProgress(RUN, 1, 0, RUN, task=-1)]
    stopped.known[1] = WorkerProgress(RUN, 1, 30, RUN, clean=True)
    stopped.said.clear()
    stopped.resuming.say_clean(begin)
    assert stopped.said == [WorkerProgress(RUN, 0, 5, RUN, clean=True, task=-1)], "the task of the other one did"


def test_what_an_earlier_run_may_have_begun_is_not_clean_before_it_is_passed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = [WorkerProgress(EARLIER_RUN, 0, 5, EARLIER_RUN), WorkerProgress(EARLIER_RUN, 1, 30, EARLIER_RUN)]
    stopped = Stopped(monkeypatch, tmp_path, {0: 5, 1: 40}, known)
    begin = stopped.resuming.realtime_was_last()
    assert begin is not None
    stopped.resuming.say_where(RUN, begin)
    assert [each.since for each in stopped.said] == [EARLIER_RUN, EARLIER_RUN]
    stopped.said.clear()
    stopped.resuming.say_clean(begin)
    assert [each.partition for each in stopped.said] == [0]


@pytest.mark.parametrize("done", [0, 3])
def test_behind_batches_a_start_begins_where_the_last_one_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, done: int
) -> None:
    stopped = Stopped(monkeypatch, tmp_path, {0: 50, 1: 30}, [])
    for batch in range(done + 1):
        stopped.commit(batch, {0: 10 * batch + 10, 1: 30})
    (Path(stopped.settings.checkpoint("push")) / "ranges").mkdir()
    (Path(stopped.settings.checkpoint("push")) / "ranges" / "2").touch()
    end = 10 * done + 10

    assert stopped.resuming.checkpoint_was_last() == Beginning({0: end, 1: 30}, NOTHING, 2 * RANGE)
    stopped.begins = {0: end, 1: 30}  # retention has taken all that was dispatched
    assert stopped.resuming.checkpoint_was_last() == Beginning({0: end, 1: 30}, NOTHING, 2 * RANGE)
    (Path(stopped.settings.checkpoint("push")) / "commits" / str(done)).write_text("v1")
    assert stopped.resuming.checkpoint_was_last() is None, "its commit is torn: it is repeated first"
