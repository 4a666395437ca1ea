"""Subscriptions and triggers for an operator."""

from __future__ import annotations

import json

import msgspec
import pytest
from typer.testing import CliRunner

from arborcast.admin import control_log, triggers
from arborcast.admin.subscriptions import (
    Change,
    ListedSubscription,
    SubscriptionFilter,
    SubscriptionList,
    Suspension,
    all_suspended,
    changes,
    conditions_of,
    end_suspensions,
    listed,
    one,
    recipients,
    suspended,
)
from arborcast.admin.times import iso
from arborcast.admin.triggers import ListedTrigger
from arborcast.cli import app
from arborcast.core.errors import ConfigError
from arborcast.core.settings import KafkaSettings
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.records.control import (
    ControlRecord,
    SubscriptionRecord,
    SubscriptionSuspended,
    Tombstone,
    TopicRecord,
    TriggerRecord,
    key_of,
)
from arborcast.topic_model.subscriptions import DeliveryPolicy, EndpointReference, Subscription, TopicFilter
from arborcast.topic_model.topics import TopicPath
from tests.support.routing import make_subscription, make_trigger


@pytest.fixture
def control() -> ControlView:
    control = ControlView()
    control.apply(TopicRecord(TopicPath("a/x")))
    for made in (
        make_subscription("s1", "a//.", consumer="http://one/in", created_ms=5),
        make_subscription("s2", "b", consumer="http://two/in", paused=True, terminates_ms=10**15),
        make_subscription("s3", "//.", consumer="http://three/in"),
    ):
        control.apply(SubscriptionRecord(made))
    control.apply(TriggerRecord(make_trigger("t", "a", "b")))
    control.apply(SubscriptionSuspended("s3", "connection refused", since_ms=1, at_ms=2))
    return control


def ids(found: SubscriptionList) -> list[str]:
    return [each.subscription for each in found.subscriptions]


def test_the_list_has_suspended_ones_first_and_no_triggers(control: ControlView) -> None:
    found = listed(control, SubscriptionFilter(), 10)
    assert (ids(found), found.more) == (["s3", "s1", "s2"], 0)
    first, second, _ = found.subscriptions
    assert (first.state, first.expression) == ("suspended", "//.")
    assert first.suspended == Suspension(2, 1, "connection refused")
    assert second == ListedSubscription(
        "s1", "active", None, False, "adaptive", "http://one/in", "a//.", "", "", 5, None
    )
    assert one(control, "s1") == second
    assert one(control, "t") is one(control, "nowhere") is None
    found = listed(control, SubscriptionFilter(), 2)
    assert (ids(found), found.more) == (["s3", "s1"], 1)
    found = listed(control, SubscriptionFilter(), 2, after="s1")
    assert (ids(found), found.more) == (["s2"], 0)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (SubscriptionFilter(state="paused"), ["s2"]),
        (SubscriptionFilter(endpoint="http://one/in"), ["s1"]),
        (SubscriptionFilter(endpoint="http://one/"), []),
        (SubscriptionFilter(endpoint=""), []),
        (SubscriptionFilter(part="ONE/"), ["s1"]),
        (SubscriptionFilter(topic=TopicPath("a/x")), ["s3", "s1"]),
        (SubscriptionFilter(state="active", topic=TopicPath("a/x")), ["s1"]),
    ],
)
def test_filters_of_a_list(control: ControlView, wanted: SubscriptionFilter, expected: list[str]) -> None:
    assert ids(listed(control, wanted, 10)) == expected


def test_recipients_have_their_expression_state_and_conditions(control: ControlView) -> None:
    found = recipients(control, TopicPath("a/x"))
    assert [(each.subscription, each.state, each.expression, each.consumer) for each in found] == [
        ("s1", "active", "a//.", "http://one/in"),
        ("s3", "suspended", "//.", "http://three/in"),
    ]
    assert len(recipients(control, TopicPath("a/x"), 1)) == 1
    typed = Subscription("s", EndpointReference("http://r/"), types=("{urn:t}a", "{urn:t}b"))
    assert conditions_of(typed) == "type: {urn:t}a or {urn:t}b"
    apart = msgspec.structs.replace(typed, types=(), policy=DeliveryPolicy(interval_ms=1_500))
    assert conditions_of(apart) == "1.5 s apart"


def test_only_suspended_subscriptions_are_resumed(control: ControlView, monkeypatch: pytest.MonkeyPatch) -> None:
    assert suspended(control, ["s3", "http://broker/subscriptions/s3"]) == ["s3"]
    for names, why in (
        (["s3", "s2"], "its subscriber has paused it"),
        (["s1"], "s1 is not suspended"),
        (["gone"], "there is no subscription gone"),
    ):
        with pytest.raises(ConfigError, match=why):
            suspended(control, names)
    assert all_suspended(control) == all_suspended(control, "http://three/in") == ["s3"]
    assert all_suspended(control, "http://one/in") == all_suspended(control, "") == []
    written: list[ControlRecord] = []
    monkeypatch.setattr(control_log, "append", lambda _, records, *_progress: written.extend(records))
    end_suspensions(KafkaSettings(), control, ["s3", "s1"])
    assert written == [Tombstone("susp:s3")]


def test_changes_are_the_missing_records(control: ControlView) -> None:
    def keys(change: Change, name: str) -> list[str]:
        subscription = control.table.get(name)
        assert subscription is not None
        return [key_of(record) for record in changes(control, change, subscription)]

    cases: list[tuple[Change, str, list[str]]] = [
        ("pause", "s1", ["sub:s1"]),
        ("pause", "s2", []),
        ("resume", "s1", []),
        ("resume", "s2", ["sub:s2"]),
        ("resume", "s3", ["susp:s3"]),
    ]
    for change, name, expected in cases:
        assert keys(change, name) == expected, (change, name)
    assert "sub:s3" in keys("end", "s3")


def test_triggers_are_listed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    control = ControlView()
    for record in (
        TopicRecord(TopicPath("a")),
        TopicRecord(TopicPath("b")),
        SubscriptionRecord(make_subscription("s", "a")),
    ):
        control.apply(record)
    prefixed = TopicFilter("urn:test", "p:a", "{urn:p}a", {"p": "urn:p"})
    for name in ("t2", "t1"):
        control.apply(TriggerRecord(make_trigger(name, "a", "b", created_ms=5_000, topics=(prefixed,))))
    found = triggers.listed(control, 1)
    assert [each.trigger for each in triggers.listed(control, 5).triggers] == ["t1", "t2"]
    assert found.more == 1
    assert found.triggers == (ListedTrigger("t1", "t1", "active", "{urn:p}a", "", "b", "<x/>", "", 5_000),)
    monkeypatch.setattr("arborcast.cli.triggers.kafka_of", lambda *_: None)
    monkeypatch.setattr("arborcast.admin.control_log.read_control", lambda _: control)
    shown = json.loads(CliRunner().invoke(app, ["triggers", "list", "--limit", "1", "--json"]).output)
    assert (shown["more"], shown["triggers"][0]["trigger"], shown["triggers"][0]["created"]) == (1, "t1", iso(5_000))
