"""What we need of Spark's Real-time Mode, whose list of operators `mapInArrow` is not on: to be run with every new
Spark. Where one of these fails, `dispatch.gear = batch` is the way back."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from arborcast.core.eventlog.client import make_producer
from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.job.heartbeat import started_at
from arborcast.dispatch.realtime.query import REALTIME_SESSION, KnownEnds, sent_at_once
from arborcast.dispatch.spark.source import read_log

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


RUN = 7


def note_rows(folder: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a worker: record each value; die at the marked one."""
    for batch in batches:
        texts = [row["value"].decode() for row in batch.to_pylist() if row["offset"] is not None]
        if texts:
            with Path(folder, "together").open("a") as out:
                out.write(f"{len(texts)}\n")
            for text in texts:
                if text.startswith("fail") and not (told := Path(folder, f"told-{text}")).exists():
                    (unfinished := told.with_suffix(".part")).write_text(str(os.getpid()))
                    unfinished.rename(told)
                    os._exit(1)
                with Path(folder, "rows").open("a") as out:
                    out.write(text + "\n")
    yield pa.RecordBatch.from_pydict({"taken": pa.array([1], pa.int64())})


class Trial:
    """A real-time query over the notifications log, and what its workers have seen."""

    def __init__(self, spark: SparkSession, kafka: KafkaSettings, folder: Path) -> None:
        ensure_topics(kafka)
        self._kafka = kafka
        self.topic = kafka.topic("notifications")
        self._folder = folder
        self._session = spark.newSession()
        for name, value in REALTIME_SESSION.items():
            self._session.conf.set(name, value)
        self._producer = make_producer(kafka)
        self.checkpoint = folder / "checkpoint"
        self.query: StreamingQuery | None = None

    def start(self, batch: str) -> None:
        rows = read_log(
            self._session, self._kafka, "notifications", starting="earliest", fail_on_data_loss=True, fetch_wait_ms=500
        )
        writer: Any = (
            sent_at_once(rows, RUN)
            .mapInArrow(partial(note_rows, str(self._folder)), "taken long")
            .writeStream.format("noop")
        )
        options = writer.option("checkpointLocation", self.checkpoint.as_uri()).outputMode("update")
        self.query = options.trigger(realTime=batch).start()

    def send(self, text: str) -> None:
        self._producer.send(self.topic, value=text.encode(), key=b"k")
        self._producer.flush(timeout=30)

    def rows(self) -> list[str]:
        file = self._folder / "rows"
        return file.read_text().split() if file.exists() else []

    def together(self) -> list[int]:
        """How many rows came at a time."""
        return [int(each) for each in (self._folder / "together").read_text().split()]

    def wait_for(self, text: str, times: int = 1, timeout: float = 120.0) -> None:
        deadline = time.monotonic() + timeout
        while self.rows().count(text) < times:
            failed = self.query is not None and self.query.exception()
            assert time.monotonic() < deadline, f"{text} did not come {times} times: {self.rows()}, {failed}"
            time.sleep(0.02)

    def wait_for_failure(self, text: str) -> None:
        """Until the worker that has read this is gone."""
        deadline = time.monotonic() + 120
        told = self._folder / f"told-{text}"
        while not told.exists() or started_at(int(told.read_text())):
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def commits(self) -> int:
        return len([path for path in (self.checkpoint / "commits").glob("*") if path.name.isdigit()])

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()

    def close(self) -> None:
        self.stop()
        self._producer.close(timeout=1)


@pytest.fixture
def trial(spark: SparkSession, kafka_settings: KafkaSettings, tmp_path: Path) -> Iterator[Trial]:
    made = Trial(spark, kafka_settings, tmp_path)
    yield made
    made.close()


def test_each_row_is_there_before_the_next_one_is_sent(trial: Trial) -> None:
    """Nothing is withheld until there are more rows, and nothing has to be yielded for them to come."""
    trial.start("30 minutes")
    for number in range(20):
        trial.send(f"row{number}")
        trial.wait_for(f"row{number}")
    assert trial.rows() == [f"row{number}" for number in range(20)]
    assert trial.commits() == 0, "the batch goes on"


def test_rows_that_others_are_known_to_follow_leave_together_and_the_last_one_is_not_withheld(
    trial: Trial, spark: SparkSession
) -> None:
    sent = [f"row{number}" for number in range(100)]
    for text in sent:
        trial.send(text)
    known = KnownEnds(spark, trial.topic, RUN)
    known.show({0: len(sent), 1: len(sent)})
    other = KnownEnds(spark, "of-another-engine", RUN)
    other.show({0: 1_000, 1: 1_000})
    try:
        trial.start("30 minutes")
        trial.wait_for(sent[-1])
        assert trial.rows() == sent
        assert len(trial.together()) < 20
        trial.send("alone")
        trial.wait_for("alone")
        assert trial.together()[-1] == 1
    finally:
        known.forget()
        other.forget()


def test_records_read_by_a_stopped_batch_are_not_settled(trial: Trial) -> None:
    trial.start("30 minutes")
    trial.send("one")
    trial.wait_for("one")
    trial.stop()
    assert trial.commits() == 0
    trial.start("30 minutes")
    trial.wait_for("one", times=2)


def test_a_batch_whose_worker_died_is_not_taken_for_done(trial: Trial) -> None:
    trial.start("30 minutes")
    trial.send("before")
    trial.wait_for("before")
    trial.send("fail1")
    trial.wait_for_failure("fail1")
    # The JVM notices what has become of a worker when it has something to write, and not always with the first row.
    # See `ModeController` for our own look.
    trial.send("after")
    deadline = time.monotonic() + 120
    while "after" not in trial.rows():
        assert time.monotonic() < deadline, f"{trial.rows()}, {trial.query and trial.query.exception()}"
        time.sleep(1)
        trial.send("more")
    again = trial.rows()
    assert again[:4] == ["before", "before", "fail1", "after"], "the task was begun again where the batch begins"
    assert trial.commits() == 0


def test_a_batch_that_is_over_is_done_and_the_next_goes_on_behind_it(trial: Trial) -> None:
    trial.start("5 seconds")
    for number in range(60):
        trial.send(f"row{number}")
        time.sleep(0.2)
    trial.wait_for("row59")
    assert trial.rows() == [f"row{number}" for number in range(60)]
    assert trial.commits() >= 1
