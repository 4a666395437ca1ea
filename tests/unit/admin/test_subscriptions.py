"""Subscriptions as an operator sees them."""

from __future__ import annotations

import msgspec
import pytest

from arborcast.admin import control_log
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
from arborcast.topic_model.subscriptions import DeliveryPolicy, EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.routing import make_subscription, make_trigger


def test_what_else_must_be_fulfilled_beyond_the_topic_is_said_in_words() -> None:
    subscription = Subscription("s", EndpointReference("http://r/"), types=("{urn:t}a", "{urn:t}b"))
    assert conditions_of(subscription) == "type: {urn:t}a or {urn:t}b"
    apart = msgspec.structs.replace(subscription, types=(), policy=DeliveryPolicy(interval_ms=1_500))
    assert conditions_of(apart) == "1.5 s apart"


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
    first = found.subscriptions[0]
    assert (first.state, first.suspended, first.expression) == (
        "suspended",
        Suspension(2, 1, "connection refused"),
        "//.",
    )
    assert found.subscriptions[1] == ListedSubscription(
        "s1", "active", None, False, "adaptive", "http://one/in", "a//.", "", "", 5, None
    )
    assert one(control, "s1") == found.subscriptions[1]
    assert one(control, "t") is None
    assert one(control, "nowhere") is None


def test_a_list_goes_on_behind_its_last_subscription(control: ControlView) -> None:
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
def test_filters(control: ControlView, wanted: SubscriptionFilter, expected: list[str]) -> None:
    assert ids(listed(control, wanted, 10)) == expected


def test_recipients_of_a_topic_come_with_the_expression_and_the_state(control: ControlView) -> None:
    found = recipients(control, TopicPath("a/x"))
    assert [(each.subscription, each.state, each.expression, each.consumer) for each in found] == [
        ("s1", "active", "a//.", "http://one/in"),
        ("s3", "suspended", "//.", "http://three/in"),
    ]
    assert len(recipients(control, TopicPath("a/x"), 1)) == 1


def test_only_suspended_subscriptions_are_resumed(control: ControlView) -> None:
    assert suspended(control, ["s3", "http://broker/subscriptions/s3"]) == ["s3"]
    with pytest.raises(ConfigError, match="its subscriber has paused it"):
        suspended(control, ["s3", "s2"])
    with pytest.raises(ConfigError, match="s1 is not suspended"):
        suspended(control, ["s1"])
    with pytest.raises(ConfigError, match="there is no subscription gone"):
        suspended(control, ["gone"])
    assert all_suspended(control) == all_suspended(control, "http://three/in") == ["s3"]
    assert all_suspended(control, "http://one/in") == all_suspended(control, "") == []


def test_the_end_of_suspensions_leaves_the_subscriptions_own_records(
    control: ControlView, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[ControlRecord] = []
    monkeypatch.setattr(control_log, "append", lambda _, records: written.extend(records))
    end_suspensions(KafkaSettings(), control, ["s3", "s1"])
    assert written == [Tombstone("susp:s3")]


def test_changes_are_the_records_that_are_missing(control: ControlView) -> None:
    def keys(change: Change, name: str) -> list[str]:
        subscription = control.table.get(name)
        assert subscription is not None
        return [key_of(record) for record in changes(control, change, subscription)]

    assert keys("pause", "s1") == ["sub:s1"]
    assert keys("pause", "s2") == []
    assert keys("resume", "s1") == []
    assert keys("resume", "s2") == ["sub:s2"]
    assert keys("resume", "s3") == ["susp:s3"]
    assert "sub:s3" in keys("end", "s3")
