"""Pull points that HPwsn's clients make before they subscribe: none is left behind."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from urllib.parse import urlsplit

import pytest

from arborcast.ingest.operations import pull_points
from arborcast.ingest.operations.subscription_manager import end_expired_forever
from arborcast.ingest.settings import GatewaySettings
from tests.support import legacy_messages as legacy
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer, live, only_subscription

URL = "http://host:9002/wsn-subscribe"
ALARM = "all:alarm"
REPEATED = "Repeated subscriptions"


def ask(parts: GatewayParts, message: str) -> str:
    answer = parts.post(legacy.wsn_process(message), "/wsnprocess/")
    assert answer.status == 200, answer.body
    return answer.root.findtext(".//{*}WsnProcessResponse") or ""


def made(parts: GatewayParts, name: str = "") -> str:
    """The address of the pull point that CreatePullPoint returns."""
    return legacy.address_in(ask(parts, legacy.create_pull_point(name)))


def subscribe(parts: GatewayParts, endpoint: str, topic: str = ALARM, url: str = URL) -> str:
    return ask(parts, legacy.subscribe(topic, url, endpoint))


def unsubscribe(parts: GatewayParts, to: str, path: str = "/wsnprocess") -> HttpAnswer:
    return parts.post(legacy.plain_unsubscribe(to), path)


def expire(parts: GatewayParts) -> None:
    asyncio.run(pull_points.end_unused(parts.gateway))


@pytest.mark.parametrize("name", ["", "a subscriber"])
@pytest.mark.parametrize("ends_by", ["reference", "endpoint", "endpoint itself", "envelope"])
def test_rounds_of_a_client_need_one_pull_point(name: str, ends_by: str) -> None:
    parts = GatewayParts(GatewaySettings(pull_points=1))
    for _ in range(5):
        endpoint, committed = made(parts, name), len(parts.control.records)
        reference = legacy.address_in(subscribe(parts, endpoint))
        # The subscription and the end of its pull point are one change.
        changes = [type(each).__name__ for each in parts.control.records[committed:]]
        assert changes == ["SubscriptionRecord", "PullPointEnded", "Tombstone"]
        assert subscribe(parts, made(parts)) == REPEATED
        assert len(parts.pull_points) == 0
        if ends_by == "envelope":
            assert ask(parts, legacy.unsubscribe(ALARM, URL)) == "success"
        else:
            to = reference if ends_by == "reference" else endpoint
            path = urlsplit(endpoint).path if ends_by == "endpoint itself" else "/wsnprocess"
            assert unsubscribe(parts, to, path).status == 200
    assert live(parts.control.records) == set()


@pytest.mark.parametrize("namespace", [legacy.WSNT, f"{legacy.WSNT}/"])
def test_plain_calls_leave_nothing_behind(namespace: str) -> None:
    def envelope(message: str) -> bytes:
        return soap.envelope(message.replace(f'"{legacy.WSNT}"', f'"{namespace}"'))

    parts = GatewayParts(GatewaySettings(pull_points=1))
    for path in ("/WSN/CreatePullPoint", "/wsnprocess", "/WSN/Broker/"):
        endpoint = parts.post(envelope(legacy.create_pull_point("\n a name ")), path).text("Address") or ""
        assert parts.post(envelope(legacy.create_pull_point("a name")), path).text("Address") == endpoint
        assert parts.post(envelope(legacy.subscribe(ALARM, URL, endpoint)), path).status == 200
        assert len(parts.pull_points) == 0
        assert parts.post(legacy.plain_unsubscribe(endpoint, namespace), path).status == 200
    assert live(parts.control.records) == set()


def test_a_name_keeps_its_endpoint(parts: GatewayParts) -> None:
    endpoint = made(parts, "one")
    assert made(parts, " \n one ") == endpoint != made(parts, "two")

    async def at_once() -> str:
        """The endpoint for the name while it is bound to a subscription."""
        bodies = (legacy.subscribe(ALARM, URL, endpoint), legacy.create_pull_point("one"))
        requests = [parts.request("POST", "/wsnprocess", legacy.wsn_process(body)) for body in bodies]
        _, asked = await asyncio.gather(*requests)
        return legacy.address_in(asked.root.findtext(".//{*}WsnProcessResponse") or "")

    assert asyncio.run(at_once()) == endpoint
    assert (len(parts.pull_points), only_subscription(parts).consumer.address) == (1, URL)
    # A client that was started again, and has forgotten everything.
    assert made(parts, "one") == endpoint
    assert subscribe(parts, endpoint) == REPEATED
    subscribe(parts, endpoint, "all:other")
    assert len(list(parts.table.subscriptions())) == 2
    assert unsubscribe(parts, endpoint).status == 200
    assert not list(parts.table.subscriptions())
    assert unsubscribe(parts, endpoint).fault == "ResourceUnknownFault"
    again = made(parts, "one")
    assert again != endpoint
    # Another subscriber of the same name: neither ends the other's subscription.
    subscribe(parts, again)
    subscribe(parts, again, url="http://other:9002/")
    answer = unsubscribe(parts, again)
    assert (answer.status, "SubscriptionReference" in answer.reason) == (500, True)
    assert len(list(parts.table.subscriptions())) == 2


def test_names_have_up_to_200_characters(parts: GatewayParts) -> None:
    assert made(parts, "n" * 200)
    for body, path in (
        (legacy.wsn_process(legacy.create_pull_point("n" * 201)), "/wsnprocess"),
        (soap.envelope(legacy.create_pull_point("n" * 201)), "/WSN/CreatePullPoint"),
    ):
        answer = parts.post(body, path)
        assert (answer.fault, "200" in answer.reason) == ("UnableToCreatePullPointFault", True)


def test_unused_pull_points_expire() -> None:
    parts = GatewayParts(GatewaySettings(endpoint_idle_s=60))
    endpoint, named = made(parts), made(parts, "named")
    parts.later(seconds=59)
    expire(parts)
    assert made(parts, "named") == named  # that is use
    parts.later(seconds=1)
    expire(parts)
    assert [parts.pull_points.exists(each.rpartition("/")[2]) for each in (endpoint, named)] == [False, True]
    parts.later(seconds=60)

    async def until_there_is_none() -> None:
        duty = asyncio.create_task(end_expired_forever(parts.gateway))
        while len(parts.pull_points):
            await asyncio.sleep(0)
        duty.cancel()

    asyncio.run(until_there_is_none())
    assert live(parts.control.records) == set()
    # A slow client: the address goes on as one of its subscription.
    subscribe(parts, endpoint)
    assert unsubscribe(parts, endpoint).status == 200


def test_pull_points_in_use_and_those_of_the_standard_last(parts: GatewayParts) -> None:
    def get_messages(address: str) -> int:
        return parts.post(soap.envelope("<wsnt:GetMessages/>"), urlsplit(address).path).status

    fetched, filled, of_an_old_one, locked = (made(parts) for _ in range(4))
    assert get_messages(fetched) == 200
    parts.post(soap.envelope(soap.subscribe(filled)))
    subscribe(parts, of_an_old_one, url=of_an_old_one)
    assert {f"{each.pull_point}" for each in parts.table.subscriptions()} == {
        each.rpartition("/")[2] for each in (filled, of_an_old_one)
    }
    standard = parts.post(soap.envelope(legacy.create_pull_point()), "/wsn/CreatePullPoint").text("Address") or ""
    committed = len(parts.control.records)
    parts.later(days=1)

    async def meanwhile() -> None:
        async with parts.gateway.locks.hold(("pull point", locked.rpartition("/")[2])):
            await pull_points.end_unused(parts.gateway)

    asyncio.run(meanwhile())
    assert [get_messages(each) for each in (fetched, filled, of_an_old_one, standard)] == [200] * 4
    assert len(parts.control.records) == committed
    subscribe(parts, fetched)
    assert len(parts.pull_points) == 5, "nor does a Subscribe end it"


@pytest.mark.long
def test_churn_leaves_everything_as_it_was() -> None:
    parts = GatewayParts(GatewaySettings(pull_points=3))

    async def call(message: str) -> str:
        answer = await parts.request("POST", "/wsnprocess/", legacy.wsn_process(message))
        return legacy.address_in(answer.root.findtext(".//{*}WsnProcessResponse") or "")

    async def rounds(count: int) -> None:
        for number in range(count):
            endpoint = await call(legacy.create_pull_point("" if number % 2 else f"name {number}"))
            await call(legacy.subscribe(ALARM, URL, endpoint))
            ended = await parts.request("POST", "/wsnprocess/", legacy.plain_unsubscribe(endpoint))
            assert ended.status == 200
            parts.control.records.clear()  # the log of these tests is a list
        gc.collect()

    asyncio.run(rounds(500))
    tracemalloc.start()
    asyncio.run(rounds(500))
    before = tracemalloc.get_traced_memory()[0]
    asyncio.run(rounds(5_000))
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(parts.pull_points) == len(parts.pull_points.endpoints) == len(parts.gateway.locks) == 0
    assert not list(parts.table.subscriptions())
    assert not any(vars(parts.pull_points.endpoints).values())
    assert grown < 50_000, "ten bytes for each round"
