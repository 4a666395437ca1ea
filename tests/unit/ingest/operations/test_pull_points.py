"""Pull points as their clients see them."""

from __future__ import annotations

import asyncio

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.ingest.operations.pull_points import end_orphans
from arborcast.ingest.settings import GatewaySettings
from arborcast.topic_model.records.control import PullPointEnded, PullPointRecord, SubscriptionEnded, Tombstone
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, live
from tests.support.oasis import validate
from tests.support.pulling import FACTORY, create, fill, get, payloads


def test_a_name_leads_to_the_same_pull_point(parts: GatewayParts) -> None:
    name = f'xmlns:w="{soap.WSNT}" w:pullPointQueueName="orders"'
    first = create(parts, name)
    assert create(parts, name) == first
    assert create(parts, 'pullPointQueueName="orders"') == first
    assert create(parts, 'pullPointQueueName="others"') != first
    parts.post(soap.envelope("<wsnt:DestroyPullPoint/>"), first)
    assert create(parts, name) != first


@pytest.mark.parametrize(
    "wrong",
    [
        "<wsnt:NotificationMessage/>",
        "<wsnt:NotificationMessage><wsnt:Message/></wsnt:NotificationMessage>",
        "<wsnt:NotificationMessage><wsnt:Message><a/><b/></wsnt:Message></wsnt:NotificationMessage>",
        soap.message("nonsense:/", "<a/>"),
    ],
)
def test_a_message_that_cannot_be_read_is_refused_and_costs_no_other(parts: GatewayParts, wrong: str) -> None:
    path = create(parts)
    fill(parts, path, "1")
    answer = parts.post(soap.envelope(soap.notify(soap.message(), wrong)), path)
    assert (answer.status, parts.pull_log.store.waiting(path.rpartition("/")[2])) == (500, 1)
    fill(parts, path, "2")
    assert payloads(parts.post(get(), path)) == ["1", "2"]


def test_an_answer_has_no_more_elements_than_may_be(parts: GatewayParts) -> None:
    path = create(parts)
    for text in ("1", "2", "3"):
        fill(parts, path, f"<x/>{'<a/>' * 9_000}{text}")
    counts = []
    while answer := parts.post(get(), path).root.findall(f".//{{{soap.WSNT}}}NotificationMessage"):
        counts.append(len(answer))
    assert counts == [2, 1], "20,000 elements and attributes"


@pytest.mark.parametrize("path", [FACTORY, "/wsn/NotificationBroker"])
def test_a_pull_point_is_created_at_either_address(parts: GatewayParts, path: str) -> None:
    created = create(parts, path=path)
    (record,) = parts.control.records
    assert isinstance(record, PullPointRecord)
    assert created == f"/wsn/pullpoints/{record.id}"
    assert create(parts, 'xmlns:x="urn:x" x:y="z"', path) != created, "without a name each is a new one"


def test_there_are_only_so_many_pull_points() -> None:
    parts = GatewayParts(GatewaySettings(pull_points=1))
    create(parts)
    answer = parts.post(soap.envelope("<wsnt:CreatePullPoint/>"), FACTORY)
    assert (answer.fault, answer.status) == ("UnableToCreatePullPointFault", 500)
    assert "1 pull points" in answer.reason


def test_messages_come_out_in_order_only_once_and_as_they_were_put_in(parts: GatewayParts) -> None:
    path = create(parts)
    fill(parts, path, "1", "2")
    fill(parts, path, "3")
    assert [payloads(parts.post(get(2), path)) for _ in range(3)] == [["1", "2"], ["3"], []]
    payload = "<o:order   xmlns:o='urn:o'><![CDATA[<]]>&#65;</o:order>"
    parts.post(soap.envelope(soap.notify(soap.message(payload=payload))), path)
    answer = parts.post(get(), path)
    assert payload.encode() in answer.body
    topic = answer.root.find(f".//{{{soap.WSNT}}}GetMessagesResponse/{{{soap.WSNT}}}NotificationMessage/{{*}}Topic")
    assert topic is not None
    assert (topic.text, topic.nsmap["t"]) == ("t:a/b", "urn:t")


@pytest.mark.parametrize("number", ["1" + "0" * 19, "+" + "9" * 20, "0" * 30 + "9" * 18, "9" * 5_000])
def test_a_number_beyond_all_bounds_means_all(parts: GatewayParts, number: str) -> None:
    path = create(parts)
    texts = [str(n) for n in range(300)]
    fill(parts, path, *texts)
    assert payloads(parts.post(get(number), path)) == texts


def test_no_number_means_256_and_one_that_is_none_is_refused(parts: GatewayParts) -> None:
    path = create(parts)
    for number in (None, 0):
        fill(parts, path, *(str(each) for each in range(300)))
        assert [len(payloads(parts.post(get(number), path))) for _ in range(2)] == [256, 44]
    fill(parts, path, "1")
    for wrong in ("-1", "many", "1.5"):
        answer = parts.post(get(wrong), path)
        assert (answer.fault, wrong in answer.reason) == ("UnableToGetMessagesFault", True)
    assert payloads(parts.post(get(), path)) == ["1"]


def test_destroying_ends_the_subscriptions_too(parts: GatewayParts) -> None:
    path = create(parts)
    parts.post(soap.envelope(soap.subscribe(f"http://127.0.0.1:8080{path}")))
    (subscription,) = parts.table.subscriptions()
    fill(parts, path, "1")
    assert parts.post(soap.envelope("<wsnt:DestroyPullPoint/>"), path).status == 200
    assert list(parts.table.subscriptions()) == []
    ended = parts.control.records[2:]
    identifier = path.rpartition("/")[2]
    assert [type(record) for record in ended if not isinstance(record, Tombstone)] == [
        SubscriptionEnded,
        PullPointEnded,
    ]
    assert ended[1] == Tombstone(f"sub:{subscription.id}")
    assert ended[-1] == Tombstone(f"pull:{identifier}")
    assert live(parts.control.records) == set()
    assert parts.pull_log.store.ids() == []
    for body in (get(), soap.envelope("<wsnt:DestroyPullPoint/>"), soap.envelope(soap.notify())):
        assert parts.post(body, path).fault == "ResourceUnknownFault"


def test_ids_of_other_resources_are_unknown(parts: GatewayParts) -> None:
    path = create(parts)
    parts.post(soap.envelope(soap.subscribe("http://127.0.0.1:9/c")))
    (subscription,) = parts.table.subscriptions()
    assert parts.post(get(), f"/wsn/pullpoints/{subscription.id}").fault == "ResourceUnknownFault"
    as_subscription = path.replace("pullpoints", "subscriptions")
    assert parts.post(soap.envelope("<wsnt:Unsubscribe/>"), as_subscription).fault == "ResourceUnknownFault"


def test_a_pull_point_is_a_consumer(parts: GatewayParts) -> None:
    path = create(parts)
    answer = parts.post(soap.envelope(soap.subscribe(f"http://127.0.0.1:8080{path}")))
    again = parts.post(soap.envelope(soap.subscribe(f"http://127.0.0.1:8080{path}/")))
    (subscription,) = parts.table.subscriptions()
    assert subscription.pull_point == path.rpartition("/")[2]
    assert answer.text("Address") == again.text("Address"), "however its address is spelled"


def test_raw_messages_cannot_wait_in_a_pull_point(parts: GatewayParts) -> None:
    path = create(parts)
    raw = "<wsnt:SubscriptionPolicy><wsnt:UseRaw/></wsnt:SubscriptionPolicy>"
    answer = parts.post(soap.envelope(soap.subscribe(f"http://127.0.0.1:8080{path}", more=raw)))
    assert answer.fault == "UnsupportedPolicyRequestFault"


def test_a_subscription_to_what_another_gateway_destroyed_is_ended(parts: GatewayParts) -> None:
    path = create(parts)
    parts.post(soap.envelope(soap.subscribe(f"http://127.0.0.1:8080{path}")))
    parts.pull_points.apply(Tombstone(f"pull:{path.rpartition('/')[2]}"))
    parts.control.error = InfrastructureError("away", 2)
    asyncio.run(end_orphans(parts.gateway))
    assert len(list(parts.table.subscriptions())) == 1
    parts.control.error = None
    asyncio.run(end_orphans(parts.gateway))
    assert list(parts.table.subscriptions()) == []


def test_one_that_the_message_names_is_found_at_the_brokers_address(parts: GatewayParts) -> None:
    path = create(parts)
    fill(parts, path, "1")
    header = soap.addressing("urn:any", to=f"http://127.0.0.1:8080{path}")
    assert payloads(parts.post(soap.envelope("<wsnt:GetMessages/>", header=header))) == ["1"]
    assert parts.post(soap.envelope("<wsnt:DestroyPullPoint/>", header=header)).status == 200
    gone = parts.post(soap.envelope("<wsnt:GetMessages/>", header=header))
    assert (gone.fault, "there is no pull point" in gone.reason) == ("ResourceUnknownFault", True)


@pytest.mark.parametrize("operation", ["GetMessages", "DestroyPullPoint"])
def test_who_names_none_there_is_told_where_to_send_it(parts: GatewayParts, operation: str) -> None:
    create(parts)
    answer = parts.post(soap.envelope(f"<wsnt:{operation}/>"))
    validate(answer.body)
    assert (answer.fault, "no pull point is named" in answer.reason) == ("ResourceUnknownFault", True)
    assert len(parts.control.records) == 1


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_every_answer_is_of_the_published_form(parts: GatewayParts, version: str) -> None:
    def ask(body: str, path: str) -> bytes:
        return parts.post(soap.envelope(body, version), path).body

    path = create(parts)
    fill(parts, path, "1", "2")
    number = "<wsnt:MaximumNumber>{}</wsnt:MaximumNumber>"
    validate(ask("<wsnt:CreatePullPoint/>", FACTORY))
    for maximum in ("1", "9", "9", "-1"):
        validate(ask(f"<wsnt:GetMessages>{number.format(maximum)}</wsnt:GetMessages>", path))
    validate(ask("<wsnt:DestroyPullPoint/>", path))
    for body in ("<wsnt:DestroyPullPoint/>", "<wsnt:GetMessages/>", soap.notify()):
        validate(ask(body, path))
