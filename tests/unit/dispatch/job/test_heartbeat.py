"""When the job's heart beats, and when it does not."""

from __future__ import annotations

import logging

import pytest

from arborcast.dispatch.job.heartbeat import PATIENCE_WITH_TASKS, Heart

LIMIT_S = 30.0


class Job:
    """A job as its heart sees it."""

    def __init__(self) -> None:
        self.rounds = 0
        self.asked = 0
        self.beats = 0
        self.heart = Heart(self._ask, lambda: self.rounds, LIMIT_S, None)

    def _ask(self) -> None:
        self.asked += 1
        if self.asked > 100:
            raise ConnectionError("the JVM is gone")

    def beat(self) -> None:
        self.beats += 1


def test_no_beat_before_the_job_is_ready() -> None:
    job = Job()
    job.heart.look(0.0)
    job.heart.look(10_000.0)
    assert (job.asked, job.beats) == (2, 0)
    job.heart.beat = job.beat
    job.heart.look(10_002.0)
    assert (job.asked, job.beats) == (3, 1), "a start may take its time"


def test_no_beat_while_the_redelivery_does_not_come_round(caplog: pytest.LogCaptureFixture) -> None:
    job = Job()
    job.heart.beat = job.beat
    patience_s = LIMIT_S * PATIENCE_WITH_TASKS
    with caplog.at_level(logging.WARNING):
        job.heart.look(0.0)
        job.heart.look(patience_s - 1)
        assert job.beats == 2, "it may take its time"
        job.heart.look(patience_s)
        job.heart.look(patience_s + 2)
        assert job.beats == 2
        assert len(caplog.records) == 1, "said once"
        job.rounds += 1
        job.heart.look(patience_s + 4)
        assert job.beats == 3


def test_no_beat_without_the_jvm() -> None:
    job = Job()
    job.heart.beat = job.beat
    job.asked = 100
    with pytest.raises(ConnectionError):
        job.heart.look(0.0)
    assert job.beats == 0
