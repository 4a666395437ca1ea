"""What `arborcast queues` says."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import arborcast.admin.control_log
import arborcast.dispatch.operations.waiting
import arborcast.engine.monitoring.stack_monitor
from arborcast.cli import app, queues
from arborcast.dispatch.logs.parked import Delivery, Place, Tries
from arborcast.dispatch.operations.waiting import Asked, Wait
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.expressions import parse_friendly
from arborcast.topic_model.records.control import SubscriptionRecord, TopicPolicy, TopicRecord
from arborcast.topic_model.subscriptions import EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath

METRICS = b"""\
arborcast_queue_requests{queue="jobs",state="waiting"} 7
arborcast_queue_requests{queue="jobs",state="executing"} 1
arborcast_queue_oldest_seconds{queue="jobs"} 12.5
arborcast_queue_server_busy_seconds{queue="jobs",server="s1"} 3.25
arborcast_queue_requests{queue="other",state="waiting"} 99
"""

LANE = Delivery("queue:jobs", Place(1, 0, 2))


class Waiting:
    """Two requests, one of which was sent twice."""

    def __init__(self, _: object) -> None:
        pass

    def oldest(self, asked: Asked, most: int) -> tuple[list[Wait], int]:
        assert asked.subscription("queue:jobs")
        assert not asked.subscription("queue:others")
        topic = TopicPath("jobs")
        return [
            Wait(LANE, "r1", topic, 1_000, 1_000, Tries(2, 2, 5_000, 2_000), None, 5),
            Wait(LANE, "r2", topic, 2_000, 2_000, Tries()),
        ], 3


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> None:
    control = ControlView()
    control.apply(TopicRecord(TopicPath("jobs"), policy=TopicPolicy(queue=True)))
    control.apply(TopicRecord(TopicPath("plain")))
    for name, queue in (("s1", 2), ("s2", 1), ("watcher", 0)):
        server = Subscription(name, EndpointReference(f"http://{name}/"), "", (parse_friendly("jobs"),), queue=queue)
        control.apply(SubscriptionRecord(server))
    monkeypatch.setattr(arborcast.admin.control_log, "read_control", lambda *_: control)
    monkeypatch.setattr(queues, "kafka_of", lambda *_: None)
    monkeypatch.setattr(queues, "one_topic", lambda topic, *_: TopicPath(topic))
    monkeypatch.setattr(arborcast.engine.monitoring.stack_monitor, "get", lambda url: METRICS)
    monkeypatch.setattr(arborcast.dispatch.operations.waiting, "Waiting", Waiting)


def asked(*arguments: str) -> tuple[str, str]:
    done = CliRunner().invoke(app, ["queues", *arguments, "--url", "http://job:1"])
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


@pytest.mark.usefixtures("world")
def test_the_list_says_what_waits_and_is_done_and_by_how_many() -> None:
    out, _ = asked("list")
    assert out.splitlines() == ["jobs  7 waiting, the oldest for 12 s, 1 executing  2 servers"]
    (queue,) = json.loads(asked("list", "--json")[0])
    assert (queue["queue"], queue["waiting"], queue["executing"], queue["oldest_s"]) == ("jobs", 7, 1, 12.5)
    assert [(each["subscription"], each["busy_s"]) for each in queue["servers"]] == [("s1", 3.2), ("s2", None)]


@pytest.mark.usefixtures("world")
def test_one_shows_who_works_for_how_long_and_what_waits() -> None:
    lines = asked("show", "jobs")[0].splitlines()
    assert lines[0] == "server s1 at http://s1/, 2 at a time, active, at work for 3.2 s"
    assert lines[1] == "server s2 at http://s2/, 1 at a time, active"
    assert lines[2].endswith("r1  priority 5, sent 2 times")
    assert lines[3].endswith("r2  priority 0")
    document = json.loads(asked("show", "jobs", "--json")[0])
    assert [each["notification"] for each in document["requests"]] == ["r1", "r2"]
    assert document["more"] == 3


@pytest.mark.usefixtures("world")
def test_where_the_job_cannot_be_asked_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_: str) -> bytes:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(arborcast.engine.monitoring.stack_monitor, "get", away)
    out, complaint = asked("list")
    assert out.splitlines() == ["jobs  unknown  2 servers"]
    assert "who works is not known" in complaint
