"""Pull points; the answers and faults of each operation are in tests/conformance/cases.toml."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.ingest.operations import pull_points, subscription_manager
from arborcast.ingest.operations.pull_points import end_orphans
from arborcast.ingest.settings import GatewaySettings
from arborcast.topic_model.records.control import (
    ControlRecord,
    PullPointEnded,
    PullPointRecord,
    SubscriptionEnded,
    SubscriptionRecord,
    Tombstone,
)
from arborcast.topic_model.subscriptions import BoundEndpoint, EndpointReference, Subscription
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer, live, only_subscription
from tests.support.oasis import validate
from tests.support.pulling import FACTORY, create, fill, get, payloads


def subscribe(parts: GatewayParts, path: str, policy: str = "") -> HttpAnswer:
    return parts.post(soap.envelope(soap.subscribe(f"http://127.0.0.1:8080{path}", policy=policy)))


def pull(parts: GatewayParts, path: str, maximum: object = None) -> list[str]:
    return payloads(parts.post(get(maximum), path))


def test_names_addresses_and_the_number_of_pull_points() -> None:
    parts = GatewayParts(GatewaySettings(pull_points=4))
    name = f'xmlns:w="{soap.WSNT}" w:pullPointQueueName="orders"'
    first = create(parts, name)
    assert create(parts, name) == create(parts, 'pullPointQueueName="orders"') == first
    (record,) = parts.control.records
    assert isinstance(record, PullPointRecord)
    assert first == f"/wsn/pullpoints/{record.id}"
    parts.gateway.own.base = "https://new.example"
    again = parts.post(soap.envelope(f"<wsnt:CreatePullPoint {name}/>"), FACTORY)
    assert again.text("Address") == f"https://new.example{first}"
    parts.gateway.own.base = "http://127.0.0.1:8080"
    others = {create(parts, 'pullPointQueueName="others"'), create(parts, 'xmlns:x="urn:x" x:y="z"')}
    others.add(create(parts, path="/wsn/NotificationBroker"))
    assert len(others | {first}) == 4, "new ones without a name"
    refused = parts.post(soap.envelope("<wsnt:CreatePullPoint/>"), FACTORY)
    assert (refused.fault, "4 pull points" in refused.reason) == ("UnableToCreatePullPointFault", True)
    parts.post(soap.envelope("<wsnt:DestroyPullPoint/>"), first)
    assert create(parts, name) != first


def test_messages_are_pulled_in_order_once_and_unchanged(parts: GatewayParts) -> None:
    path = create(parts)
    fill(parts, path, "1", "2")
    fill(parts, path, "3")
    assert [pull(parts, path, 2) for _ in range(3)] == [["1", "2"], ["3"], []]
    payload = "<o:order   xmlns:o='urn:o'><![CDATA[<]]>&#65;</o:order>"
    parts.post(soap.envelope(soap.notify(soap.message(payload=payload))), path)
    answer = parts.post(get(), path)
    assert payload.encode() in answer.body
    (topic,) = answer.root.iterfind(".//{*}GetMessagesResponse/{*}NotificationMessage/{*}Topic")
    assert (topic.text, topic.nsmap["t"]) == ("t:a/b", "urn:t")


@pytest.mark.parametrize(
    "wrong",
    [
        "<wsnt:NotificationMessage/>",
        "<wsnt:NotificationMessage><wsnt:Message/></wsnt:NotificationMessage>",
        "<wsnt:NotificationMessage><wsnt:Message><a/><b/></wsnt:Message></wsnt:NotificationMessage>",
        soap.message("nonsense:/", "<a/>"),
    ],
)
def test_an_unreadable_message_does_not_affect_others(parts: GatewayParts, wrong: str) -> None:
    path = create(parts)
    fill(parts, path, "1")
    answer = parts.post(soap.envelope(soap.notify(soap.message(), wrong)), path)
    assert (answer.status, parts.pull_log.store.waiting(path.rpartition("/")[2])) == (500, 1)
    fill(parts, path, "2")
    assert pull(parts, path) == ["1", "2"]


def test_the_number_of_messages_in_an_answer(parts: GatewayParts) -> None:
    path, texts = create(parts), [str(number) for number in range(300)]
    for number in ("1" + "0" * 19, "+" + "9" * 20, "0" * 30 + "9" * 18, "9" * 5_000):
        fill(parts, path, *texts)
        assert pull(parts, path, number) == texts, "any large number"
    for default in (None, 0):
        fill(parts, path, *texts)
        assert [len(pull(parts, path, default)) for _ in range(2)] == [256, 44]
    fill(parts, path, "1")
    for wrong in ("-1", "many", "1.5"):
        answer = parts.post(get(wrong), path)
        validate(answer.body)
        assert (answer.fault, wrong in answer.reason) == ("UnableToGetMessagesFault", True)
    assert pull(parts, path) == ["1"]
    fill(parts, path, *(f"<x/>{'<a/>' * 9_000}{text}" for text in ("1", "2", "3")))
    counts = []
    while answers := parts.post(get(), path).root.findall(f".//{{{soap.WSNT}}}NotificationMessage"):
        counts.append(len(answers))
    assert counts == [2, 1], "at most 20,000 elements and attributes"


def test_destroy_ends_the_subscriptions(parts: GatewayParts) -> None:
    path = create(parts)
    subscribe(parts, path)
    subscription, identifier = only_subscription(parts), path.rpartition("/")[2]
    fill(parts, path, "1")
    validate(parts.post(soap.envelope("<wsnt:DestroyPullPoint/>"), path).body)
    assert list(parts.table.subscriptions()) == []
    ended = parts.control.records[2:]
    kinds = [type(record) for record in ended if not isinstance(record, Tombstone)]
    assert kinds == [SubscriptionEnded, PullPointEnded]
    assert (ended[1], ended[-1]) == (Tombstone(f"sub:{subscription.id}"), Tombstone(f"pull:{identifier}"))
    assert live(parts.control.records) == set()
    assert parts.pull_log.store.ids() == []
    for body in (get(), soap.envelope("<wsnt:DestroyPullPoint/>"), soap.envelope(soap.notify())):
        answer = parts.post(body, path)
        validate(answer.body)
        assert answer.fault == "ResourceUnknownFault"


@pytest.mark.parametrize(
    ("module", "body", "link"),
    [
        (pull_points, "<wsnt:DestroyPullPoint/>", {"pull_point": "p"}),
        (subscription_manager, "<wsnt:Unsubscribe/>", {"endpoint": BoundEndpoint("p")}),
    ],
)
def test_many_subscriptions_are_ended_in_pieces(
    parts: GatewayParts, monkeypatch: pytest.MonkeyPatch, module: ModuleType, body: str, link: dict[str, Any]
) -> None:
    if "pull_point" in link:
        parts.control.apply(PullPointRecord("p", "http://127.0.0.1:8080/wsn/pullpoints/p"))
    for number in range(5):
        made = Subscription(f"s{number}", EndpointReference("http://127.0.0.1:9/"), **link)
        parts.control.apply(SubscriptionRecord(made))
    together: list[int] = []
    commit = parts.control.commit

    async def counted(records: Sequence[ControlRecord]) -> int:
        together.append(sum(isinstance(each, SubscriptionEnded) for each in records))
        return await commit(records)

    monkeypatch.setattr(parts.control, "commit", counted)
    monkeypatch.setattr(module, "_AT_ONCE", 2)
    assert parts.post(soap.envelope(body), "/wsn/pullpoints/p").status == 200
    assert together == [2, 2, 1]
    assert list(parts.table.subscriptions()) == []
    assert not parts.pull_points.exists("p")


def test_a_pull_point_as_a_consumer(parts: GatewayParts) -> None:
    path = create(parts)
    assert subscribe(parts, path, "<wsnt:UseRaw/>").fault == "UnsupportedPolicyRequestFault"
    answer, again = subscribe(parts, path), subscribe(parts, f"{path}/")
    assert answer.text("Address") == again.text("Address"), "independent of the spelling of the address"
    assert only_subscription(parts).pull_point == path.rpartition("/")[2]
    # Ids of other resources are unknown.
    as_pull_point = f"/wsn/pullpoints/{only_subscription(parts).id}"
    assert parts.post(get(), as_pull_point).fault == "ResourceUnknownFault"
    as_subscription = path.replace("pullpoints", "subscriptions")
    assert parts.post(soap.envelope("<wsnt:Unsubscribe/>"), as_subscription).fault == "ResourceUnknownFault"
    # Another gateway destroys it.
    parts.pull_points.apply(Tombstone(f"pull:{path.rpartition('/')[2]}"))
    parts.control.error = InfrastructureError("away", 2)
    asyncio.run(end_orphans(parts.gateway))
    assert len(list(parts.table.subscriptions())) == 1
    parts.control.error = None
    asyncio.run(end_orphans(parts.gateway))
    assert list(parts.table.subscriptions()) == []
