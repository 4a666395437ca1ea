"""Work queues, as an operator sees them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from arborcast.admin.queues import QueueRequests, RequestStatus, job_figures, requests
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs.parked import Delivery, Place, Tries
from arborcast.dispatch.operations.waiting import DeliverySelection, Wait
from arborcast.topic_model.topics import TopicPath

JOBS = TopicPath("jobs")


def test_a_job_that_does_not_answer_is_a_problem_and_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def away(url: str) -> bytes:
        asked.append(url)
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr("arborcast.engine.monitoring.stack_monitor.get", away)
    assert job_figures(tmp_path, "http://job:1") == (None, "no process listens there")
    assert asked == ["http://job:1/metrics"]
    assert "no engine runs in" in job_figures(tmp_path).problem
    monkeypatch.setattr("arborcast.engine.monitoring.stack_monitor.get", lambda _: b'queue_requests{queue="a"} 7')
    scrape = job_figures(tmp_path, "http://job:1").scrape
    assert scrape is not None
    assert scrape.sum("queue_requests", queue="a") == 7


def test_requests_are_what_waits_in_the_lane_of_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Delivery("queue:jobs", Place(1, 0, 2))
    waits = [
        Wait(lane, "r1", JOBS, 1_000, 1_000, Tries(2, 2, 5_000, 2_000), None, 5),
        Wait(lane, "r2", JOBS, 2_000, 2_000, Tries()),
    ]

    def oldest(_: object, asked: DeliverySelection, most: int) -> tuple[list[Wait], int, Counter[str]]:
        assert [asked.subscription(name) for name in ("queue:jobs", "queue:others")] == [True, False]
        assert most == 2
        return waits, 3, Counter()

    monkeypatch.setattr("arborcast.dispatch.operations.waiting.Waiting.oldest", oldest)
    assert requests(KafkaSettings(), JOBS, 2) == QueueRequests(
        (RequestStatus("r1", 5, 1_000, 2, 5_000), RequestStatus("r2", 0, 2_000, 0, 0)), 3
    )
