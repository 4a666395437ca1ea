"""What `arborcast queues` prints."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import arborcast.admin.control_log
from arborcast.admin import queues as admin
from arborcast.admin.queues import JobFigures, QueueRequests, RequestStatus
from arborcast.cli import app, queues
from arborcast.core.errors import ConfigError
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.topics import TopicPath
from tests.support.console_answers import INSPECTIONS, JOB, QUEUE_RECORDS


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> None:
    control = ControlView()
    for each in QUEUE_RECORDS:
        control.apply(each)
    waits = QueueRequests((RequestStatus("r1", 5, 1_000, 2, 5_000), RequestStatus("r2", 0, 2_000, 0, 0)), 3)
    monkeypatch.setattr(arborcast.admin.control_log, "read_control", lambda *_: control)
    monkeypatch.setattr(admin, "requests", lambda *_: waits)
    monkeypatch.setattr(admin, "job_figures", lambda *_: JOB)
    monkeypatch.setattr(queues, "kafka_of", lambda *_: None)
    monkeypatch.setattr(queues, "one_topic", lambda topic, *_: TopicPath(topic))


def asked(*arguments: str) -> tuple[str, str]:
    done = CliRunner().invoke(app, ["queues", *arguments, "--url", "http://job:1"])
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


@pytest.mark.usefixtures("world")
def test_the_list_says_what_waits_and_is_done_and_by_how_many() -> None:
    out, _ = asked("list")
    assert out.splitlines() == [
        "labels  0 pending, 0 in progress  3 workers",
        "reports  1 pending, the oldest 5 s, 0 in progress  0 workers",
        "{urn:plant}plant/inspections  3 pending, the oldest 74 s, 2 in progress  3 workers",
    ]


@pytest.mark.usefixtures("world")
def test_one_shows_who_works_for_how_long_and_what_waits() -> None:
    lines = asked("show", INSPECTIONS)[0].splitlines()
    assert lines[0] == "worker s7 at https://camera1.example:8443/inspect, concurrency 1, active, busy for 12.3 s"
    assert lines[2] == "worker s9 at https://camera3.example:8443/inspect, concurrency 1, paused"
    assert lines[3].endswith("r1  priority 5, sent 2 times")
    assert lines[4].endswith("r2  priority 0")


@pytest.mark.usefixtures("world")
def test_a_topic_that_is_no_queue_is_refused() -> None:
    with pytest.raises(ConfigError, match="nope is no work queue"):
        CliRunner().invoke(app, ["queues", "show", "nope", "--url", "http://job:1"], catch_exceptions=False)


@pytest.mark.usefixtures("world")
def test_json_has_the_same_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    labels, reports, inspections = json.loads(asked("list", "--json")[0])
    assert [each["queue"] for each in (labels, reports)] == ["labels", "reports"]
    assert inspections == {
        "queue": INSPECTIONS,
        "merge": True,
        "waiting": 3,
        "executing": 2,
        "oldest_s": 74.2,
        "servers": [
            {
                "subscription": f"s{number + 6}",
                "endpoint": f"https://camera{number}.example:8443/inspect",
                "capacity": capacity,
                "state": state,
                "busy_s": busy_s,
            }
            for number, capacity, state, busy_s in (
                (1, 1, "active", 12.3),
                (2, 2, "active", 3.1),
                (3, 1, "paused", None),
            )
        ],
    }
    monkeypatch.setattr(queues, "moment", lambda ms: f"at {ms}")
    monkeypatch.setattr("arborcast.admin.documents.iso", lambda ms: f"at {ms}")
    shown = json.loads(asked("show", INSPECTIONS, "--json")[0])
    assert shown == {
        **inspections,
        "requests": [
            {"notification": "r1", "priority": 5, "accepted": "at 1000", "attempts": 2, "next": "at 5000"},
            {"notification": "r2", "priority": 0, "accepted": "at 2000", "attempts": 0, "next": ""},
        ],
        "more": 3,
    }


@pytest.mark.usefixtures("world")
def test_where_the_job_cannot_be_asked_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "job_figures", lambda *_: JobFigures(problem="connection refused"))
    out, complaint = asked("list")
    assert out.splitlines()[1] == "reports  unknown  0 workers"
    assert "live counts unavailable: connection refused" in complaint
