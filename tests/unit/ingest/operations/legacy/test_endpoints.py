"""What becomes of the pull points that HPwsn's clients make before they subscribe: none is left behind."""

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


def ask(parts: GatewayParts, message: str) -> str:
    answer = parts.post(legacy.wsn_process(message), "/wsnprocess/")
    assert answer.status == 200, answer.body
    return answer.root.findtext(".//{*}WsnProcessResponse") or ""


def made(parts: GatewayParts, name: str = "") -> str:
    """The address of the pull point that CreatePullPoint returns."""
    return legacy.address_in(ask(parts, legacy.create_pull_point(name)))


def unsubscribe(parts: GatewayParts, to: str, path: str = "/wsnprocess") -> HttpAnswer:
    return parts.post(legacy.plain_unsubscribe(to), path)


def get_messages(parts: GatewayParts, address: str) -> HttpAnswer:
    return parts.post(soap.envelope(f'<w:GetMessages xmlns:w="{legacy.WSNT}"/>'), urlsplit(address).path)


def expire(parts: GatewayParts) -> None:
    asyncio.run(pull_points.end_unused(parts.gateway))


@pytest.mark.parametrize("name", ["", "a subscriber"])
@pytest.mark.parametrize("ends_by", ["reference", "endpoint", "endpoint itself", "envelope"])
def test_hundred_rounds_of_a_client_fit_into_three_pull_points(name: str, ends_by: str) -> None:
    parts = GatewayParts(GatewaySettings(pull_points=3))
    for _ in range(100):
        endpoint = made(parts, name)
        reference = legacy.address_in(ask(parts, legacy.subscribe(ALARM, URL, endpoint)))
        assert len(parts.pull_points) == 0
        if ends_by == "envelope":
            assert ask(parts, legacy.unsubscribe(ALARM, URL)) == "success"
        else:
            to = reference if ends_by == "reference" else endpoint
            path = urlsplit(endpoint).path if ends_by == "endpoint itself" else "/wsnprocess"
            assert unsubscribe(parts, to, path).status == 200
    assert not list(parts.table.subscriptions())
    assert live(parts.control.records) == set()


def test_subscribe_and_the_end_of_its_pull_point_are_one_change() -> None:
    parts = GatewayParts()
    endpoint = made(parts)
    committed = len(parts.control.records)
    ask(parts, legacy.subscribe(ALARM, URL, endpoint))
    subscription = only_subscription(parts)
    assert subscription.endpoint is not None
    assert endpoint.endswith(f"/{subscription.endpoint.id}")
    assert [type(each).__name__ for each in parts.control.records[committed:]] == [
        "SubscriptionRecord",
        "PullPointEnded",
        "Tombstone",
    ]


def test_a_repeated_subscription_ends_its_pull_point_too() -> None:
    parts = GatewayParts(GatewaySettings(pull_points=3))
    first = made(parts)
    ask(parts, legacy.subscribe(ALARM, URL, first))
    for _ in range(10):
        assert ask(parts, legacy.subscribe(ALARM, URL, made(parts))) == "Repeated subscriptions"
        assert len(parts.pull_points) == 0
    assert unsubscribe(parts, first).status == 200
    assert live(parts.control.records) == set()


@pytest.mark.parametrize("namespace", [legacy.WSNT, f"{legacy.WSNT}/"])
def test_plain_calls_leave_nothing_behind(namespace: str) -> None:
    def envelope(message: str) -> bytes:
        return soap.envelope(message.replace(f'"{legacy.WSNT}"', f'"{namespace}"'))

    parts = GatewayParts(GatewaySettings(pull_points=3))
    for path in ("/WSN/CreatePullPoint", "/wsnprocess", "/WSN/Broker/") * 3:
        endpoint = parts.post(envelope(legacy.create_pull_point("\n a name ")), path).text("Address") or ""
        assert parts.post(envelope(legacy.create_pull_point("a name")), path).text("Address") == endpoint
        assert parts.post(envelope(legacy.subscribe(ALARM, URL, endpoint)), path).status == 200
        assert len(parts.pull_points) == 0
        assert parts.post(legacy.plain_unsubscribe(endpoint, namespace), path).status == 200
    assert live(parts.control.records) == set()


def test_a_name_gets_the_same_endpoint_as_long_as_it_is_there() -> None:
    parts = GatewayParts()
    endpoint = made(parts, "one")
    assert made(parts, " \n one ") == endpoint
    assert made(parts, "two") != endpoint
    ask(parts, legacy.subscribe(ALARM, URL, endpoint))
    # A client that was started again, and has forgotten everything.
    assert made(parts, "one") == endpoint
    assert ask(parts, legacy.subscribe(ALARM, URL, endpoint)) == "Repeated subscriptions"
    ask(parts, legacy.subscribe("all:other", URL, endpoint))
    assert len(list(parts.table.subscriptions())) == 2
    assert unsubscribe(parts, endpoint).status == 200
    assert not list(parts.table.subscriptions())
    assert unsubscribe(parts, endpoint).fault == "ResourceUnknownFault"
    assert made(parts, "one") != endpoint


def test_one_subscriber_does_not_end_what_another_of_the_same_name_has() -> None:
    parts = GatewayParts()
    endpoint = made(parts, "everyone")
    ask(parts, legacy.subscribe(ALARM, URL, endpoint))
    ask(parts, legacy.subscribe(ALARM, "http://other:9002/", endpoint))
    answer = unsubscribe(parts, endpoint)
    assert answer.status == 500
    assert "SubscriptionReference" in answer.reason
    assert len(list(parts.table.subscriptions())) == 2


def test_a_name_that_is_too_long_is_a_fault() -> None:
    parts = GatewayParts()
    assert made(parts, "n" * 200)
    for body, path in (
        (legacy.wsn_process(legacy.create_pull_point("n" * 201)), "/wsnprocess"),
        (soap.envelope(legacy.create_pull_point("n" * 201)), "/WSN/CreatePullPoint"),
    ):
        answer = parts.post(body, path)
        assert answer.fault == "UnableToCreatePullPointFault"
        assert "200" in answer.reason


def test_what_nobody_uses_ends() -> None:
    parts = GatewayParts(GatewaySettings(endpoint_idle_s=60))
    endpoint, named = made(parts), made(parts, "named")
    parts.later(seconds=59)
    expire(parts)
    assert made(parts, "named") == named  # that is use
    parts.later(seconds=1)
    expire(parts)
    assert [parts.pull_points.get(each.rpartition("/")[2]) is None for each in (endpoint, named)] == [True, False]
    parts.later(seconds=60)
    expire(parts)
    assert len(parts.pull_points) == 0
    assert live(parts.control.records) == set()
    # A client that took its time: its address goes on as one of the subscription.
    ask(parts, legacy.subscribe(ALARM, URL, endpoint))
    assert unsubscribe(parts, endpoint).status == 200


def test_the_duty_that_ends_what_has_expired_ends_them() -> None:
    parts = GatewayParts()
    made(parts)
    parts.later(days=1)

    async def until_there_is_none() -> None:
        duty = asyncio.create_task(end_expired_forever(parts.gateway))
        while len(parts.pull_points):
            await asyncio.sleep(0)
        duty.cancel()

    asyncio.run(until_there_is_none())
    assert live(parts.control.records) == set()


def test_a_name_that_is_asked_for_while_its_pull_point_is_bound() -> None:
    parts = GatewayParts()
    endpoint = made(parts, "n")

    async def at_once() -> tuple[HttpAnswer, HttpAnswer]:
        bound = parts.request("POST", "/wsnprocess", legacy.wsn_process(legacy.subscribe(ALARM, URL, endpoint)))
        asked = parts.request("POST", "/wsnprocess", legacy.wsn_process(legacy.create_pull_point("n")))
        return await asyncio.gather(bound, asked)

    _, asked = asyncio.run(at_once())
    assert legacy.address_in(asked.root.findtext(".//{*}WsnProcessResponse") or "") == endpoint
    assert len(parts.pull_points) == 0


def test_pull_points_in_use_and_those_of_the_standard_last() -> None:
    parts = GatewayParts()
    fetched, filled, of_an_old_one, locked = (made(parts) for _ in range(4))
    assert get_messages(parts, fetched).status == 200
    parts.post(soap.envelope(soap.subscribe(filled)))
    ask(parts, legacy.subscribe(ALARM, of_an_old_one, of_an_old_one))
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
    assert len(parts.pull_points) == 5
    for endpoint in (fetched, filled, of_an_old_one, standard):
        assert get_messages(parts, endpoint).status == 200
    assert len(parts.control.records) == committed
    # A Subscribe does not end it either.
    ask(parts, legacy.subscribe(ALARM, URL, fetched))
    assert len(parts.pull_points) == 5


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
    asyncio.run(rounds(20_000))
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(parts.pull_points) == len(parts.pull_points.endpoints) == 0
    assert not list(parts.table.subscriptions())
    assert len(parts.gateway.locks) == 0
    assert not any(vars(parts.pull_points.endpoints).values())
    assert grown < 200_000, "ten bytes for each round"
