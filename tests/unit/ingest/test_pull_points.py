"""Pull points as their clients see them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from lxml import etree

from ingest.pull_points import PULL, end_orphans
from ingest.pull_queues import PullQueues
from ingest.settings import GatewaySettings
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer
from tests.support.oasis import validate
from topic_model.errors import InfrastructureError
from topic_model.pull_log import Claimed, Returned, Settled, StoredMessage
from topic_model.records import PullPointEnded, PullPointRecord, SubscriptionEnded, Tombstone

FACTORY = "/wsn/CreatePullPoint"


def create(parts: GatewayParts, attributes: str = "", path: str = FACTORY) -> str:
    """The path of a new pull point."""
    answer = parts.post(soap.envelope(f"<wsnt:CreatePullPoint {attributes}/>"), path)
    assert answer.status == 200, answer.reason
    address = answer.text("Address") or ""
    assert address.startswith("http://127.0.0.1:8080/wsn/pullpoints/")
    return address.removeprefix("http://127.0.0.1:8080")


def get(maximum: object = None, attributes: str = "") -> bytes:
    number = "" if maximum is None else f"<wsnt:MaximumNumber>{maximum}</wsnt:MaximumNumber>"
    return soap.envelope(f"<wsnt:GetMessages {attributes}>{number}</wsnt:GetMessages>")


def payloads(answer: HttpAnswer) -> list[str]:
    assert answer.status == 200, answer.reason
    return [element.text or "" for element in answer.root.iterfind(".//{urn:o}order")]


def fill(parts: GatewayParts, path: str, *texts: str) -> None:
    messages = [soap.message(payload=f'<o:order xmlns:o="urn:o">{text}</o:order>') for text in texts]
    assert parts.post(soap.envelope(soap.notify(*messages)), path).status == 202


@pytest.fixture
def parts() -> GatewayParts:
    return GatewayParts()


@pytest.mark.parametrize("path", [FACTORY, "/wsn/NotificationBroker"])
def test_a_pull_point_is_created_at_either_address(parts: GatewayParts, path: str) -> None:
    created = create(parts, path=path)
    (record,) = parts.control.records
    assert isinstance(record, PullPointRecord)
    assert created == f"/wsn/pullpoints/{record.id}"
    assert create(parts, path=path) != created, "without a name each is a new one"


def test_a_name_leads_to_the_same_pull_point(parts: GatewayParts) -> None:
    name = f'xmlns:w="{soap.WSNT}" w:pullPointQueueName="orders"'
    first = create(parts, name)
    assert create(parts, name) == first
    assert create(parts, 'pullPointQueueName="orders"') == first
    assert create(parts, 'pullPointQueueName="others"') != first
    parts.post(soap.envelope("<wsnt:DestroyPullPoint/>"), first)
    assert create(parts, name) != first


def test_unknown_attributes_are_taken(parts: GatewayParts) -> None:
    create(parts, 'xmlns:x="urn:x" x:y="z"')


def test_there_are_only_so_many_pull_points() -> None:
    parts = GatewayParts(GatewaySettings(pull_points=1))
    create(parts)
    answer = parts.post(soap.envelope("<wsnt:CreatePullPoint/>"), FACTORY)
    assert (answer.fault, answer.status) == ("UnableToCreatePullPointFault", 500)
    assert "1 pull points" in answer.reason


def test_messages_come_out_in_order_and_only_once(parts: GatewayParts) -> None:
    path = create(parts)
    fill(parts, path, "1", "2")
    fill(parts, path, "3")
    assert payloads(parts.post(get(2), path)) == ["1", "2"]
    assert payloads(parts.post(get(2), path)) == ["3"]
    assert payloads(parts.post(get(2), path)) == []


def test_messages_come_out_as_they_were_put_in(parts: GatewayParts) -> None:
    path = create(parts)
    payload = "<o:order   xmlns:o='urn:o'><![CDATA[<]]>&#65;</o:order>"
    parts.post(soap.envelope(soap.notify(soap.message(payload=payload))), path)
    answer = parts.post(get(), path)
    assert payload.encode() in answer.body
    message = answer.root.find(f".//{{{soap.WSNT}}}GetMessagesResponse/{{{soap.WSNT}}}NotificationMessage")
    assert message is not None
    topic = message.find(f"{{{soap.WSNT}}}Topic")
    assert topic is not None
    assert (topic.text, topic.nsmap["t"]) == ("t:a/b", "urn:t")


@pytest.mark.parametrize("number", [None, 0])
def test_no_number_means_256(parts: GatewayParts, number: int | None) -> None:
    path = create(parts)
    fill(parts, path, *(str(each) for each in range(300)))
    assert len(payloads(parts.post(get(number), path))) == 256
    assert len(payloads(parts.post(get(number), path))) == 44


@pytest.mark.parametrize("number", ["-1", "many", "1.5"])
def test_a_number_that_is_none_is_refused(parts: GatewayParts, number: str) -> None:
    path = create(parts)
    fill(parts, path, "1")
    answer = parts.post(get(number), path)
    assert answer.fault == "UnableToGetMessagesFault"
    assert number in answer.reason
    assert payloads(parts.post(get(), path)) == ["1"]


def test_an_answer_is_settled_once_it_has_left(parts: GatewayParts) -> None:
    path = create(parts)
    fill(parts, path, "1")
    assert payloads(asyncio.run(finished(parts, lambda: parts.request("POST", path, get())))) == ["1"]
    kinds = [type(record) for _, record in parts.pull_log.records]
    assert kinds == [StoredMessage, Claimed, Settled]


async def finished(parts: GatewayParts, work: Callable[[], Awaitable[HttpAnswer]]) -> HttpAnswer:
    answer = await work()
    await parts.pulls.close()
    return answer


def test_what_could_not_be_sent_waits_again(parts: GatewayParts) -> None:
    path = create(parts)
    fill(parts, path, "1")

    async def broken() -> None:
        pieces: list[dict[str, object]] = [{"type": "http.request", "body": get(), "more_body": False}]

        async def receive() -> dict[str, object]:
            if not pieces:
                await asyncio.Event().wait()
            return pieces.pop()

        async def send(_: object) -> None:
            raise ConnectionResetError

        scope = {"type": "http", "method": "POST", "path": path, "headers": []}
        with pytest.raises(ConnectionResetError):
            await parts.app(scope, receive, send)
        await parts.pulls.close()

    asyncio.run(broken())
    assert isinstance(parts.pull_log.records[-1][1], Returned)
    assert payloads(parts.post(get(), path)) == ["1"]


def test_get_messages_waits_for_the_first_one(parts: GatewayParts) -> None:
    path = create(parts)

    async def pull() -> HttpAnswer:
        waiting = asyncio.create_task(parts.request("POST", path, get(attributes=f'xmlns:p="{PULL}" p:Wait="PT20S"')))
        while not parts.pulls.waiting_clients:
            await asyncio.sleep(0)
        body = soap.envelope(soap.notify(soap.message(payload='<o:order xmlns:o="urn:o">late</o:order>')))
        await parts.request("POST", path, body)
        return await asyncio.wait_for(waiting, 5)

    assert payloads(asyncio.run(pull())) == ["late"]
    assert parts.pulls.waiting_clients == 0


def test_a_wait_ends_without_messages_too(parts: GatewayParts) -> None:
    path = create(parts)
    wait = f'<p:Wait xmlns:p="{PULL}">PT0.02S</p:Wait>'
    answer = parts.post(soap.envelope(f"<wsnt:GetMessages>{wait}</wsnt:GetMessages>"), path)
    assert payloads(answer) == []
    assert parts.pull_log.records == [], "nothing is written for nothing"


def test_no_wait_is_longer_than_the_setting() -> None:
    parts = GatewayParts(GatewaySettings(pull_max_wait_s=0.01, pull_wait_s=1_000))
    path = create(parts)
    assert payloads(parts.post(get(), path)) == []
    assert payloads(parts.post(get(attributes=f'xmlns:p="{PULL}" p:Wait="P1Y"'), path)) == []


def test_a_wait_that_is_no_duration_is_refused(parts: GatewayParts) -> None:
    path = create(parts)
    answer = parts.post(get(attributes=f'xmlns:p="{PULL}" p:Wait="10"'), path)
    assert answer.fault == "UnableToGetMessagesFault"
    assert "'10' is no duration" in answer.reason


def test_a_client_that_hangs_up_takes_nothing(parts: GatewayParts) -> None:
    path = create(parts)

    async def hang_up() -> None:
        pieces: list[dict[str, object]] = [
            {"type": "http.request", "body": get(attributes=f'xmlns:p="{PULL}" p:Wait="PT20S"'), "more_body": False},
            {"type": "http.disconnect"},
        ]

        async def receive() -> dict[str, object]:
            return pieces.pop(0)

        async def send(_: object) -> None:
            pass

        scope = {"type": "http", "method": "POST", "path": path, "headers": []}
        await asyncio.wait_for(parts.app(scope, receive, send), 5)

    asyncio.run(hang_up())
    fill(parts, path, "1")
    assert payloads(parts.post(get(), path)) == ["1"]


def test_two_who_pull_at_once_share_the_messages(parts: GatewayParts) -> None:
    path = create(parts)
    fill(parts, path, *(str(number) for number in range(20)))

    async def pull() -> list[HttpAnswer]:
        return await asyncio.gather(*(parts.request("POST", path, get(3)) for _ in range(7)))

    answers = [payloads(answer) for answer in asyncio.run(pull())]
    assert sorted(int(text) for answer in answers for text in answer) == list(range(20))


def test_destroying_ends_the_subscriptions_too(parts: GatewayParts) -> None:
    path = create(parts)
    parts.post(soap.envelope(soap.subscribe(f"http://127.0.0.1:8080{path}")))
    (subscription,) = parts.table.subscriptions()
    fill(parts, path, "1")
    assert parts.post(soap.envelope("<wsnt:DestroyPullPoint/>"), path).status == 200
    assert list(parts.table.subscriptions()) == []
    ended = parts.control.records[2:]
    identifier = path.rpartition("/")[2]
    assert [type(record) for record in ended] == [SubscriptionEnded, Tombstone, PullPointEnded, Tombstone]
    assert ended[1] == Tombstone(f"sub:{subscription.id}")
    assert ended[3] == Tombstone(f"pull:{identifier}")
    assert parts.pull_log.store.ids() == []
    for body in (get(), soap.envelope("<wsnt:DestroyPullPoint/>"), soap.envelope(soap.notify())):
        assert parts.post(body, path).fault == "ResourceUnknownFault"


def test_destroying_wakes_those_who_wait(parts: GatewayParts) -> None:
    path = create(parts)

    async def pull() -> HttpAnswer:
        waiting = asyncio.create_task(parts.request("POST", path, get(attributes=f'xmlns:p="{PULL}" p:Wait="PT20S"')))
        while not parts.pulls.waiting_clients:
            await asyncio.sleep(0)
        await parts.request("POST", path, soap.envelope("<wsnt:DestroyPullPoint/>"))
        return await asyncio.wait_for(waiting, 5)

    assert asyncio.run(pull()).fault == "ResourceUnknownFault"


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


def test_a_pull_point_that_is_not_there_is_no_consumer(parts: GatewayParts) -> None:
    answer = parts.post(soap.envelope(soap.subscribe("http://127.0.0.1:8080/wsn/pullpoints/x")))
    assert answer.fault == "SubscribeCreationFailedFault"
    assert "not there: 'x'" in answer.reason


def test_raw_messages_cannot_wait_in_a_pull_point(parts: GatewayParts) -> None:
    path = create(parts)
    raw = "<wsnt:SubscriptionPolicy><wsnt:UseRaw/></wsnt:SubscriptionPolicy>"
    answer = parts.post(soap.envelope(soap.subscribe(f"http://127.0.0.1:8080{path}", more=raw)))
    assert answer.fault == "UnsupportedPolicyRequestFault"


def test_nothing_is_lost_while_the_log_cannot_be_written(parts: GatewayParts) -> None:
    path = create(parts)
    fill(parts, path, "1")
    parts.pull_log.error = InfrastructureError("away", 2)
    assert parts.post(get(), path).status == 503
    assert parts.post(soap.envelope(soap.notify()), path).status == 503
    parts.pull_log.error = None
    assert payloads(parts.post(get(), path)) == ["1"]


class SweepingGateway:
    """Another gateway over the same log, with clocks of its own."""

    def __init__(self, parts: GatewayParts) -> None:
        self.wall, self.steady = 1_000_000.0, 0.0
        self._store = parts.pull_log.store
        self._queues = PullQueues(
            self._store,
            parts.pull_log,
            lambda _: True,
            claim_s=30,
            max_bytes=1_000,
            now=lambda: self.wall,
            steady=lambda: self.steady,
        )

    async def open_claims(self, later: float = 0.0) -> list[str]:
        """Those that are open after it has swept, so many seconds later."""
        self.steady += later
        await self._queues.sweep()
        return [claim for _, claim, _ in self._store.open_claims()]


def test_a_clock_that_is_set_neither_hides_messages_nor_hands_them_out_twice(parts: GatewayParts) -> None:
    """Claims count by how long they were seen open: whatever clock wrote them, and whatever becomes of ours."""
    path = create(parts)
    identifier = path.rpartition("/")[2]
    fill(parts, path, "1", "2", "3")
    log = parts.pull_log

    async def steps() -> None:
        gateway = SweepingGateway(parts)
        assert await gateway.open_claims() == []
        offsets = [message.offset for message in log.store.head(identifier, 3, 1_000)]
        for name, offset, wrong_s in zip(("right", "ahead", "behind"), offsets, (0, 3_600, -3_600), strict=True):
            until_ms = round((gateway.wall + wrong_s + 30) * 1000)
            await log.commit(identifier, [Claimed(name, offset, offset, until_ms)])
        assert await gateway.open_claims() == ["right", "ahead", "behind"]
        gateway.wall += 3_600
        assert await gateway.open_claims(29) == ["right", "ahead", "behind"]
        gateway.wall -= 7_200
        # One that comes now has only the times in them to go by, and what is over by these is over.
        assert await SweepingGateway(parts).open_claims() == ["right", "ahead"]
        assert await gateway.open_claims(2) == []

    asyncio.run(steps())
    assert log.store.waiting(identifier) == 3


def test_a_claim_from_before_its_start_holds_up_a_gateway_no_longer_than_any(parts: GatewayParts) -> None:
    path = create(parts)
    identifier = path.rpartition("/")[2]
    fill(parts, path, "1")

    async def steps() -> None:
        gateway = SweepingGateway(parts)
        await parts.pull_log.commit(identifier, [Claimed("ahead", 0, 0, round((gateway.wall + 3_600) * 1000))])
        assert await gateway.open_claims() == ["ahead"]
        assert await gateway.open_claims(31) == []

    asyncio.run(steps())


def test_abandoned_claims_are_returned_and_strangers_forgotten(parts: GatewayParts) -> None:
    path = create(parts)
    identifier = path.rpartition("/")[2]
    fill(parts, path, "1")

    async def sweep() -> None:
        await parts.pull_log.commit(identifier, [Claimed("dead", 0, 0, until_ms=1)])
        await parts.pull_log.commit("nobody's", [StoredMessage(b"<a/>")])
        await parts.pulls.sweep()
        assert set(parts.pull_log.store.ids()) == {identifier, "nobody's"}, "its record may come yet"
        await parts.pulls.sweep()
        assert parts.pull_log.store.ids() == [identifier]

    asyncio.run(sweep())
    assert payloads(parts.post(get(), path)) == ["1"]


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


def test_elements_that_are_not_in_memory_are_read_from_the_log(parts: GatewayParts) -> None:
    path = create(parts)
    fill(parts, path, "1", "2")
    first, _ = parts.pull_log.store.head(path.rpartition("/")[2], 2, 10_000)
    first.element = None
    assert payloads(parts.post(get(), path)) == ["1", "2"]


def test_the_answer_is_in_the_version_of_the_question(parts: GatewayParts) -> None:
    path = create(parts)
    answer = parts.post(soap.envelope("<wsnt:GetMessages/>", "1.2", soap.addressing("urn:x/GetMessagesRequest")), path)
    assert etree.QName(answer.root).namespace == soap.NAMESPACES["1.2"]
    assert answer.text("Action") == "urn:x/GetMessagesResponse"


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
