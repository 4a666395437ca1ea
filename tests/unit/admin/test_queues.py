"""Work queues, as an operator sees them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from arborcast.admin.queues import QueueRequests, RequestStatus, ServerStatus, job_figures, queue, requests
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs.parked import Delivery, Place, Tries
from arborcast.dispatch.operations.waiting import DeliverySelection, Wait
from arborcast.engine.monitoring.samples import Scrape
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.records.control import SubscriptionRecord, TopicPolicy, TopicRecord
from arborcast.topic_model.topics import TopicPath
from tests.support.routing import make_subscription

METRICS = """\
arborcast_queue_requests{queue="jobs",state="waiting"} 7
arborcast_queue_requests{queue="jobs",state="executing"} 1
arborcast_queue_oldest_seconds{queue="jobs"} 12.5
arborcast_queue_server_busy_seconds{queue="jobs",server="s1"} 3.25
arborcast_queue_requests{queue="other",state="waiting"} 99
"""

JOBS = TopicPath("jobs")


@pytest.fixture
def control() -> ControlView:
    control = ControlView()
    control.apply(TopicRecord(JOBS, policy=TopicPolicy(queue=True, merge=False)))
    for name, capacity in (("s1", 2), ("s2", 1), ("watcher", 0)):
        made = make_subscription(name, "jobs", consumer=f"http://{name}/", created_ms=capacity)
        control.apply(SubscriptionRecord(msgspec.structs.replace(made, queue=capacity)))
    return control


def test_a_queue_has_the_numbers_of_the_job_and_the_servers_of_the_log(control: ControlView) -> None:
    one = queue(control, Scrape.of(METRICS), JOBS)
    assert (one.queue, one.merge, one.waiting, one.executing, one.oldest_s) == ("jobs", False, 7, 1, 12.5)
    assert one.servers == (
        ServerStatus("s2", "http://s2/", 1, "active", None),
        ServerStatus("s1", "http://s1/", 2, "active", 3.2),
    )


def test_a_job_that_does_not_answer_is_a_problem_and_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def away(url: str) -> bytes:
        asked.append(url)
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr("arborcast.engine.monitoring.stack_monitor.get", away)
    assert job_figures(tmp_path, "http://job:1") == (None, "no process listens there")
    assert asked == ["http://job:1/metrics"]
    assert "no engine runs in" in job_figures(tmp_path).problem
    monkeypatch.setattr("arborcast.engine.monitoring.stack_monitor.get", lambda _: METRICS.encode())
    scrape = job_figures(tmp_path, "http://job:1").scrape
    assert scrape is not None
    assert scrape.sum("arborcast_queue_requests", queue="jobs") == 8


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
