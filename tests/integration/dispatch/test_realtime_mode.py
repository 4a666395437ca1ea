"""Properties of Spark's Real-time Mode that the job depends on, since `mapInArrow` is not in its list of operators: run
with every new Spark. If one of these fails, `dispatch.mode = batch` avoids the mode."""

from __future__ import annotations

import os
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
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


RUN = 7


def note_rows(folder: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a worker: record each value; exit at the marked one."""
    for batch in batches:
        texts = [row["value"].decode() for row in batch.to_pylist() if row["offset"] is not None]
        if texts:
            with Path(folder, "together").open("a") as out:
                out.write(f"{len(texts)}\n")
            for text in texts:
                if text.startswith("fail") and not (mark := Path(folder, f"told-{text}")).exists():
                    (unfinished := mark.with_suffix(".part")).write_text(str(os.getpid()))
                    unfinished.rename(mark)
                    os._exit(1)
                with Path(folder, "rows").open("a") as out:
                    out.write(text + "\n")
    yield pa.RecordBatch.from_pydict({"taken": pa.array([1], pa.int64())})


class Trial:
    """A real-time query over the notifications log, and the records that its workers have read."""

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
        """The numbers of rows that arrived together."""
        return [int(each) for each in (self._folder / "together").read_text().split()]

    def wait_for(self, text: str, times: int = 1) -> None:
        wait_until(lambda: self.rows().count(text) >= times, lambda: f"{text}, {times} times: {self.state()}")

    def wait_for_failure(self, text: str) -> None:
        """Wait until the worker that has read this value has exited."""
        mark = self._folder / f"told-{text}"
        wait_until(lambda: mark.exists() and not started_at(int(mark.read_text())))

    def state(self) -> str:
        return f"{self.rows()}, {self.query and self.query.exception()}"

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


def test_rows_arrive_at_once_and_a_stopped_batch_is_not_settled(trial: Trial) -> None:
    """Nothing is withheld until there are more rows, and no yield is needed for rows to arrive."""
    trial.start("30 minutes")
    sent = [f"row{number}" for number in range(20)]
    for text in sent:
        trial.send(text)
        trial.wait_for(text)
    assert trial.rows() == sent
    trial.stop()
    assert trial.commits() == 0
    trial.start("30 minutes")
    trial.wait_for(sent[-1], times=2)
    assert trial.rows() == sent * 2


def test_rows_with_known_successors_leave_together(trial: Trial, spark: SparkSession) -> None:
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


def test_a_batch_with_a_dead_worker_is_not_complete(trial: Trial) -> None:
    trial.start("30 minutes")
    trial.send("before")
    trial.wait_for("before")
    trial.send("fail1")
    trial.wait_for_failure("fail1")
    # The JVM notices the exit of a worker when it writes to it, and not always with the first row.
    # `ModeController` therefore checks for itself.
    trial.send("after")

    def came() -> bool:
        trial.send("more")
        return "after" in trial.rows()

    wait_until(came, trial.state, every_s=1.0)
    assert trial.rows()[:4] == ["before", "before", "fail1", "after"], "the task restarted at the batch's beginning"
    assert trial.commits() == 0


def test_the_next_batch_continues_behind_a_completed_one(trial: Trial) -> None:
    trial.start("5 seconds")
    sent: list[str] = []

    def is_over() -> bool:
        sent.append(f"row{len(sent)}")
        trial.send(sent[-1])
        return trial.commits() >= 1

    wait_until(is_over, "a batch is over", every_s=0.1)
    is_over()
    trial.wait_for(sent[-1])
    assert trial.rows() == sent
