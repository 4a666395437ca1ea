"""Through the application: what those who came in may do, and that a refusal changes nothing."""

from __future__ import annotations

import dataclasses

import pytest

from arborcast.ingest.access.policy import read_policy
from arborcast.topic_model.records.control import TopicPolicy, TopicRecord
from arborcast.topic_model.topics import TopicPath
from tests.support.gateway_parts import GatewayParts, HttpAnswer
from tests.support.guarded_gateway import (
    ANNA,
    BERT,
    OLGA,
    POLICY,
)
from tests.support.soap_messages import envelope, message, notify, subscribe, topic, topic_expression

BR = "http://docs.oasis-open.org/wsn/br-2"


def subscribed(parts: GatewayParts, who: str) -> str:
    answer = parts.post(envelope(subscribe(filters=topic_expression("t:a//."))), authorization=who)
    return (answer.text("Address") or "").removeprefix("http://127.0.0.1:8080")


def test_equal_subscriptions_and_pull_points_of_two_owners_are_two(parts: GatewayParts) -> None:
    assert subscribed(parts, ANNA) != subscribed(parts, BERT)
    assert subscribed(parts, ANNA) == subscribed(parts, ANNA)
    assert created(parts, ANNA, "mine") == created(parts, ANNA, "mine")
    assert created(parts, ANNA, "mine") != created(parts, BERT, "mine")


@pytest.mark.parametrize("what", ["pull_points", "registrations", "triggers"])
def test_no_owner_has_more_than_its_share(parts: GatewayParts, what: str) -> None:
    for fold in parts.control.folds:
        fold.apply(TopicRecord(TopicPath("{urn:t}a/to")))
    parts.gateway.settings = dataclasses.replace(
        parts.gateway.settings, share_per_owner=50, pull_points=4, registrations=4, triggers=4
    )
    numbers = iter(range(10))

    def ask(who: str) -> HttpAnswer:
        match what:
            case "pull_points":
                body, path = "<wsnt:CreatePullPoint/>", "/wsn/CreatePullPoint"
            case "registrations":
                registered = topic("t:a").replace("wsnt:Topic", "br:Topic")
                body = f"<br:RegisterPublisher xmlns:br='{BR}'>{registered}</br:RegisterPublisher>"
                path = "/wsn/NotificationBroker"
            case _:
                body = (
                    f"<p:CreateTrigger xmlns:p='urn:arborcast:policy' Name='t{next(numbers)}'><wsnt:Filter>"
                    f"{topic_expression('t:a/on')}</wsnt:Filter><p:Publish>{topic('t:a/to')}</p:Publish></p:CreateTrigger>"
                )
                path = "/wsn/NotificationBroker"
        return parts.post(envelope(body), path, authorization=who)

    first = ask(ANNA)
    assert [first.status, ask(ANNA).status] == [200, 200]
    refused = ask(ANNA)
    assert "gateway.share_per_owner allows 2" in refused.reason
    assert [ask(BERT).status, ask(BERT).status] == [200, 200], "what is left is for others"
    if what == "pull_points":
        path = (first.text("Address") or "").removeprefix("http://127.0.0.1:8080")
        assert parts.post(envelope("<wsnt:DestroyPullPoint/>"), path, authorization=ANNA).status == 200
        assert ask(ANNA).status == 200


def created(parts: GatewayParts, who: str, name: str = "") -> str:
    attribute = f' pullPointQueueName="{name}"' if name else ""
    answer = parts.post(envelope(f"<wsnt:CreatePullPoint{attribute}/>"), "/wsn/CreatePullPoint", authorization=who)
    return (answer.text("Address") or "").removeprefix("http://127.0.0.1:8080")


def test_nobody_fills_the_pull_point_of_another(parts: GatewayParts) -> None:
    path = created(parts, ANNA)
    body = envelope(subscribe(f"http://127.0.0.1:8080{path}", topic_expression("t:a//.")))
    refused = parts.post(body, authorization=BERT)
    assert refused.fault == "SubscribeCreationFailedFault"
    assert "that does not exist" in refused.reason
    assert parts.post(body, authorization=ANNA).status == 200


def test_topics_that_one_may_not_use_are_not_told(parts: GatewayParts) -> None:
    parts.post(envelope(notify(message("t:a/b"))), authorization=ANNA)
    ask = envelope(
        '<r:GetResourceProperty xmlns:r="http://docs.oasis-open.org/wsrf/rp-2"'
        ' xmlns:s="http://docs.oasis-open.org/wsn/t-1">s:TopicSet</r:GetResourceProperty>'
    )
    shown = parts.post(ask, authorization=ANNA).root.find(".//{urn:t}a/b")
    assert shown is not None
    policy = read_policy("", "policy")
    assert parts.gateway.gate is not None
    parts.gateway.gate._policy = lambda: policy
    assert parts.post(ask, authorization=ANNA).root.find(".//{urn:t}a") is None


@pytest.mark.parametrize(
    ("publishers", "who", "status"),
    [
        ((), ANNA, 202),
        (("anna",), ANNA, 202),
        (("anna", "group:operators"), BERT, 403),
        (("bert",), ANNA, 403),
        (("operators",), OLGA, 403),
        (("group:operators",), OLGA, 202),
        # A topic's list allows nobody more than the policy does.
        (("olga",), OLGA, 202),
    ],
)
def test_a_topic_may_name_its_publishers(
    parts: GatewayParts, publishers: tuple[str, ...], who: str, status: int
) -> None:
    policy = read_policy(POLICY.replace('"bert"]', '"bert", "olga"]'), "policy")
    assert parts.gateway.gate is not None
    parts.gateway.gate._policy = lambda: policy
    path = TopicPath("{urn:t}a/b")
    parts.table.apply(TopicRecord(path, policy=TopicPolicy(publishers=publishers)))
    # Beside one that anybody may publish to: all of it is refused.
    answer = parts.post(envelope(notify(message("t:a/c"), message("t:a/b"))), authorization=who)
    assert answer.status == status
    assert len(parts.notifications.accepted) == (2 if status == 202 else 0)


def test_the_topics_list_does_not_open_what_the_policy_keeps_closed(parts: GatewayParts) -> None:
    path = TopicPath("{urn:t}c")
    parts.table.apply(TopicRecord(path, policy=TopicPolicy(publishers=("anna",))))
    answer = parts.post(envelope(notify(message("t:c"))), authorization=ANNA)
    assert (answer.status, parts.notifications.accepted) == (403, [])
