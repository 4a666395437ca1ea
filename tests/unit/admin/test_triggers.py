"""Triggers, as an operator sees them."""

from __future__ import annotations

import json

import msgspec
import pytest
from typer.testing import CliRunner

from arborcast.admin.moments import iso
from arborcast.admin.triggers import ListedTrigger, listed
from arborcast.cli import app
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.records.control import SubscriptionRecord, TopicRecord, TriggerRecord
from arborcast.topic_model.topics import TopicPath
from tests.support.routing import make_subscription, make_trigger


@pytest.fixture
def control() -> ControlView:
    control = ControlView()
    for path in ("a", "b"):
        control.apply(TopicRecord(TopicPath(path)))
    control.apply(SubscriptionRecord(make_subscription("s", "a")))
    for name in ("t2", "t1"):
        control.apply(TriggerRecord(msgspec.structs.replace(make_trigger(name, "a", "b"), created_ms=5_000)))
    return control


def test_triggers_are_listed_by_name(control: ControlView) -> None:
    found = listed(control, 1)
    assert [each.trigger for each in listed(control, 5).triggers] == ["t1", "t2"]
    assert found.more == 1
    assert found.triggers == (ListedTrigger("t1", "t1", "active", "a", "", "b", found.triggers[0].payload, "", 5_000),)


def test_json_has_the_same_facts(control: ControlView, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arborcast.cli.triggers.kafka_of", lambda *_: None)
    monkeypatch.setattr("arborcast.admin.control_log.read_control", lambda _: control)
    found = json.loads(CliRunner().invoke(app, ["triggers", "list", "--limit", "1", "--json"]).output)
    assert (found["more"], found["triggers"][0]["trigger"], found["triggers"][0]["created"]) == (1, "t1", iso(5_000))
