"""Subscriptions at publishers on demand, over real HTTP, with a list for the control log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable

import pytest

from arborcast.core.backoff import Backoff
from arborcast.ingest.addresses import OwnAddresses
from arborcast.ingest.demand import calls
from arborcast.ingest.demand.worker import DemandWorker
from arborcast.topic_model.publishers import Upstream
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer
from tests.support.publisher import Publisher
from tests.support.soap_messages import WSA, WSN_BR, WSNT
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.slow


class Running:
    """A gateway with its worker, on the event loop of the test."""

    def __init__(self, publisher: Publisher) -> None:
        self.parts = GatewayParts()
        self.publisher = publisher
        self.start_worker()

    def start_worker(self) -> None:
        worker = DemandWorker(self.parts.gateway, Backoff(0.1, 60.0))
        self._worker = asyncio.create_task(worker.run())

    async def stop_worker(self) -> None:
        self._worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._worker

    async def post(self, body: str, path: str = "/wsn/NotificationBroker") -> HttpAnswer:
        return await self.parts.request("POST", path, soap.envelope(body))

    async def register(self, *topics: str, url: str = "") -> str:
        """The path of the new registration."""
        body = soap.register(*topics, publisher=url or self.publisher.url, demand="true")
        return self._path(await self.post(body))

    async def subscribe(self, topic: str, consumer: str = "http://127.0.0.1:9/consumer") -> str:
        """The path of the new subscription."""
        return self._path(await self.post(soap.subscribe(consumer, soap.topic_expression(topic))))

    async def unsubscribe(self, path: str) -> None:
        await self.post("<wsnt:Unsubscribe/>", path)

    @property
    def upstream(self) -> tuple[Upstream, ...]:
        (registration,) = self.parts.registrations
        return registration.upstream

    async def until(self, condition: Callable[[], object]) -> None:
        """Until the publisher's answer is recorded."""
        await wait_until_async(condition, lambda: self.publisher.operations)

    async def until_held(self, number: int = 1) -> None:
        await self.until(lambda: len(self.upstream) == number)

    def _path(self, answer: HttpAnswer) -> str:
        return (answer.text("Address") or "").removeprefix("http://127.0.0.1:8080")


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[tuple[Running, Publisher]]:
    with Publisher() as publisher:
        made = Running(publisher)
        try:
            yield made, publisher
        finally:
            await made.stop_worker()


async def test_the_life_of_a_registration_on_demand() -> None:
    async with running() as (gateway, publisher):
        publisher.reference_parameters = (
            '<wsa:ReferenceParameters><k:Key xmlns:k="urn:k">7</k:Key></wsa:ReferenceParameters>'
        )
        path = await gateway.register("t:a/b")
        await gateway.subscribe("t:other")
        first = await gateway.subscribe("t:a//.")
        await gateway.until_held()
        (received,) = publisher.requests
        (subscribe,) = received.message.iter(f"{{{WSNT}}}Subscribe")
        assert subscribe.findtext(f"{{{WSNT}}}ConsumerReference/{{{WSA}}}Address") == gateway.parts.gateway.own.broker
        (expression,) = subscribe.iterfind(f"{{{WSNT}}}Filter/{{{WSNT}}}TopicExpression")
        assert (expression.text, expression.get("Dialect")) == ("t:a/b", f"{soap.DIALECT}Full")
        assert expression.nsmap["t"] == "urn:t"
        assert subscribe.findtext(f"{{{WSNT}}}InitialTerminationTime") == "PT600S"
        # Another process continues, and pauses when the last subscriber leaves.
        await gateway.stop_worker()
        gateway.start_worker()
        second = await gateway.subscribe("t:a/b", "http://127.0.0.1:9/second")
        await gateway.unsubscribe(first)
        await gateway.post("<wsnt:PauseSubscription/>", second)
        await gateway.until(lambda: gateway.upstream[0].paused)
        assert publisher.operations == ["Subscribe", "PauseSubscription"]
        (key,) = publisher.requests[-1].message.iterfind("{*}Header/{urn:k}Key")
        assert (key.text, key.get(f"{{{WSA}}}IsReferenceParameter")) == ("7", "true")
        await gateway.post("<wsnt:ResumeSubscription/>", second)
        await gateway.until(lambda: not gateway.upstream[0].paused)
        await gateway.post(f'<b:DestroyRegistration xmlns:b="{WSN_BR}"/>', path)
        await gateway.until(lambda: len(publisher.operations) == 4)
        assert publisher.operations == ["Subscribe", "PauseSubscription", "ResumeSubscription", "Unsubscribe"]
        assert publisher.subscriptions == {}


async def test_a_publisher_that_cannot_pause_is_unsubscribed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "arborcast.ingest.demand")
    async with running() as (gateway, publisher):
        publisher.refuses = {"PauseSubscription"}
        await gateway.register("t:a")
        for _ in range(2):
            path = await gateway.subscribe("t:a")
            await gateway.until_held()
            await gateway.unsubscribe(path)
            await gateway.until_held(0)
        # PauseSubscription is sent only once.
        assert publisher.operations == ["Subscribe", "PauseSubscription", "Unsubscribe", "Subscribe", "Unsubscribe"]
        assert publisher.subscriptions == {}
        assert "answered 500: 's:Client no'" in caplog.text


async def test_each_topic_has_its_own_subscription() -> None:
    async with running() as (gateway, publisher):
        publisher.ends = "9999-12-31T23:59:59.9999999-05:00"  # .NET's value for no end
        await gateway.register("t:a", "t:b", "t:c//.")
        await gateway.subscribe("t:b")
        await gateway.until_held()
        await gateway.subscribe("t:c/not/there/yet")
        await gateway.until_held(2)
        assert {held.topic for held in publisher.subscriptions.values()} == {"t:b", "t:c//."}
        assert [each.terminates_ms for each in gateway.upstream] == [None, None]


async def test_an_unreachable_publisher_and_a_forbidden_address() -> None:
    async with running() as (gateway, publisher):
        publisher.away = True
        await gateway.register("t:a")
        await gateway.subscribe("t:a")
        await gateway.until(lambda: len(publisher.requests) >= 2)
        assert gateway.upstream == ()
        # The address in the answer is checked like the registered one.
        address = "<wsa:Address>file:///x</wsa:Address>"
        publisher.reference_parameters = f"<wsa:EndpointReference>{address}</wsa:EndpointReference>"
        publisher.away, before = False, len(publisher.requests)
        await gateway.until(lambda: len(publisher.requests) >= before + 2)
        assert gateway.upstream == ()
        publisher.reference_parameters = ""
        await gateway.until_held()


async def test_a_hanging_publisher_does_not_delay_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_TOTAL_S", 600)  # longer than the test
    with socket.create_server(("127.0.0.1", 0)) as silent, Publisher() as refusing:
        refusing.refuses = {"Subscribe"}
        async with running() as (gateway, publisher):
            for url in (f"http://127.0.0.1:{silent.getsockname()[1]}/", refusing.url, publisher.url):
                await gateway.register("t:a", url=url)
            await gateway.subscribe("t:a")
            await gateway.until(lambda: len(publisher.subscriptions) == 1)


async def test_renewals_and_replacement_of_a_lost_subscription() -> None:
    async with running() as (gateway, publisher):
        publisher.lasts_s = 100
        await gateway.register("t:a")
        await gateway.subscribe("t:a")
        await gateway.until_held()
        (before,) = gateway.upstream
        gateway.parts.later(seconds=79)
        await gateway.subscribe("t:x")  # triggers a step
        gateway.parts.later(seconds=2)
        await gateway.until(lambda: gateway.upstream[0] != before)
        assert publisher.operations == ["Subscribe", "Renew"]
        renewed = gateway.upstream[0].terminates_ms
        assert renewed is not None
        assert before.terminates_ms is not None
        assert 80_000 <= renewed - before.terminates_ms <= 82_000
        publisher.subscriptions.clear()
        gateway.parts.later(seconds=81)
        await gateway.until(lambda: bool(gateway.upstream) and gateway.upstream[0].reference != before.reference)
        assert publisher.operations == ["Subscribe", "Renew", "Renew", "Subscribe"]


async def test_after_a_change_of_the_own_address_publishers_get_a_new_subscription() -> None:
    async with running() as (gateway, publisher):
        await gateway.register("t:a")
        await gateway.subscribe("t:a")
        await gateway.until_held()
        (before,) = gateway.upstream
        await gateway.stop_worker()
        gateway.parts.gateway.own = OwnAddresses("127.0.0.1", 8081)
        gateway.start_worker()
        await gateway.until(lambda: bool(gateway.upstream) and gateway.upstream[0] != before)
        assert publisher.operations == ["Subscribe", "Unsubscribe", "Subscribe"]
        assert gateway.upstream[0].consumer == "http://127.0.0.1:8081/wsn/NotificationBroker"


async def test_failures_of_ended_registrations_are_removed() -> None:
    async def no_threads_left() -> None:
        raise RuntimeError("cannot schedule new futures after shutdown")

    worker = DemandWorker(GatewayParts().gateway)
    for number in range(10):
        worker._start(f"gone{number}", no_threads_left())
    while worker._busy:
        await asyncio.sleep(0)
    assert worker._troubles == {}
