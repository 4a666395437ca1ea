"""Subscribing at publishers on demand, over real HTTP, with the control log as a list."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator

import pytest

from arborcast.core.backoff import Backoff
from arborcast.ingest.demand import calls
from arborcast.ingest.demand.worker import DemandWorker
from arborcast.topic_model.publishers import Registration
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer
from tests.support.publisher import WSA, WSNT, Publisher

pytestmark = pytest.mark.slow

BR = "http://docs.oasis-open.org/wsn/br-2"
CONSUMER = "http://127.0.0.1:9/consumer"


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    with Publisher() as publisher:
        yield publisher


class Running:
    """A gateway with its worker on an event loop of its own, so that tests can be written in a row."""

    def __init__(self, parts: GatewayParts) -> None:
        self.parts = parts
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.start_worker()

    def start_worker(self) -> None:
        async def start() -> asyncio.Task[None]:
            worker = DemandWorker(self.parts.gateway, lambda: len(self.parts.control.records), Backoff(0.1, 60.0))
            return asyncio.create_task(worker.run())

        self._worker = asyncio.run_coroutine_threadsafe(start(), self._loop).result(120)

    def stop_worker(self) -> None:
        async def stop() -> None:
            self._worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._worker

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(120)

    def close(self) -> None:
        self.stop_worker()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(120)
        self._loop.close()

    def run(self, work: Awaitable[HttpAnswer]) -> HttpAnswer:
        async def awaited() -> HttpAnswer:
            return await work

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result(120)

    def post(self, body: str, path: str = "/wsn/NotificationBroker") -> HttpAnswer:
        return self.run(self.parts.request("POST", path, soap.envelope(body)))

    def subscribe(self, topic: str, consumer: str = CONSUMER) -> str:
        """The path of the new subscription."""
        answer = self.post(soap.subscribe(consumer, soap.topic_expression(topic)))
        address = answer.text("Address")
        assert address is not None
        return address.removeprefix("http://127.0.0.1:8080")

    @property
    def registration(self) -> Registration:
        (registration,) = self.parts.registrations
        return registration


@pytest.fixture
def running() -> Iterator[Running]:
    running = Running(GatewayParts())
    yield running
    running.close()


def register(publisher: Publisher, *topics: str) -> str:
    named = "".join(f'<b:Topic xmlns:t="urn:t" Dialect="{soap.DIALECT}Full">{topic}</b:Topic>' for topic in topics)
    return (
        f'<b:RegisterPublisher xmlns:b="{BR}"><b:PublisherReference><wsa:Address>{publisher.url}</wsa:Address>'
        f"</b:PublisherReference>{named}<b:Demand>true</b:Demand></b:RegisterPublisher>"
    )


def settled(running: Running, publisher: Publisher, condition: Callable[[], bool]) -> None:
    """The publisher was asked, and the answer is recorded."""
    publisher.wait_for(condition, "recorded")


def test_subscribe_when_the_first_comes_pause_when_the_last_goes_resume_when_one_comes_back(
    running: Running, publisher: Publisher
) -> None:
    running.post(register(publisher, "t:a/b"))
    running.subscribe("t:other")
    first = running.subscribe("t:a//.")
    settled(running, publisher, lambda: len(running.registration.upstream) == 1)
    (asked,) = publisher.asked
    subscribe = asked.message.find(f".//{{{WSNT}}}Subscribe")
    assert subscribe is not None
    assert subscribe.findtext(f"{{{WSNT}}}ConsumerReference/{{{WSA}}}Address") == running.parts.gateway.own.broker
    expression = subscribe.find(f"{{{WSNT}}}Filter/{{{WSNT}}}TopicExpression")
    assert expression is not None
    assert (expression.text, expression.get("Dialect"), expression.nsmap["t"]) == (
        "t:a/b",
        f"{soap.DIALECT}Full",
        "urn:t",
    )
    assert subscribe.findtext(f"{{{WSNT}}}InitialTerminationTime") == "PT600S"

    second = running.subscribe("t:a/b", "http://127.0.0.1:9/second")
    running.post("<wsnt:Unsubscribe/>", first)
    running.post("<wsnt:PauseSubscription/>", second)
    settled(running, publisher, lambda: running.registration.upstream[0].paused)
    assert publisher.operations == ["Subscribe", "PauseSubscription"]

    running.post("<wsnt:ResumeSubscription/>", second)
    settled(running, publisher, lambda: not running.registration.upstream[0].paused)
    assert publisher.operations == ["Subscribe", "PauseSubscription", "ResumeSubscription"]


def test_a_publisher_that_cannot_pause_is_left_and_subscribed_at_again(
    running: Running, publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "arborcast.ingest.demand")
    publisher.refuses = {"PauseSubscription"}
    running.post(register(publisher, "t:a"))
    for _ in range(2):
        path = running.subscribe("t:a")
        settled(running, publisher, lambda: len(running.registration.upstream) == 1)
        running.post("<wsnt:Unsubscribe/>", path)
        settled(running, publisher, lambda: not running.registration.upstream)
    # It was asked for a pause only once.
    assert publisher.operations == ["Subscribe", "PauseSubscription", "Unsubscribe", "Subscribe", "Unsubscribe"]
    assert publisher.subscriptions == {}
    assert "answered 500: 's:Client no'" in caplog.text


def test_each_topic_has_a_subscription_of_its_own(running: Running, publisher: Publisher) -> None:
    running.post(register(publisher, "t:a", "t:b", "t:c//."))
    running.subscribe("t:b")
    settled(running, publisher, lambda: len(running.registration.upstream) == 1)
    running.subscribe("t:c/not/there/yet")
    settled(running, publisher, lambda: len(running.registration.upstream) == 2)
    assert {held.topic for held in publisher.subscriptions.values()} == {"t:b", "t:c//."}


def test_destroying_the_registration_ends_the_subscription(running: Running, publisher: Publisher) -> None:
    address = running.post(register(publisher, "t:a")).text("Address")
    assert address is not None
    running.subscribe("t:a")
    settled(running, publisher, lambda: len(running.registration.upstream) == 1)
    path = address.removeprefix("http://127.0.0.1:8080")
    running.post(f'<b:DestroyRegistration xmlns:b="{BR}"/>', path)
    publisher.wait_for(lambda: publisher.subscriptions == {}, "unsubscribed")
    assert publisher.operations == ["Subscribe", "Unsubscribe"]


def test_a_publisher_that_is_away_is_tried_again(running: Running, publisher: Publisher) -> None:
    publisher.away = True
    running.post(register(publisher, "t:a"))
    running.subscribe("t:a")
    publisher.wait_for(lambda: len(publisher.asked) >= 2, "tried twice")
    assert running.registration.upstream == ()
    publisher.away = False
    settled(running, publisher, lambda: len(running.registration.upstream) == 1)
    assert len(publisher.subscriptions) == 1


def test_one_that_hangs_holds_up_nobody(
    running: Running, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_TOTAL_S", 600)  # who waited for it would not end
    with socket.create_server(("127.0.0.1", 0)) as silent, Publisher() as dead:
        running.post(register(publisher, "t:a").replace(publisher.url, f"http://127.0.0.1:{silent.getsockname()[1]}/"))
        dead.refuses = {"Subscribe"}
        running.post(register(dead, "t:a"))
        running.post(register(publisher, "t:a"))
        running.subscribe("t:a")
        publisher.wait_for(lambda: len(publisher.subscriptions) == 1, "subscribed")


def test_it_is_renewed_in_time_and_not_too_early(running: Running, publisher: Publisher) -> None:
    publisher.lasts_s = 100
    running.post(register(publisher, "t:a"))
    running.subscribe("t:a")
    settled(running, publisher, lambda: len(running.registration.upstream) == 1)
    before = running.registration.upstream[0]
    running.parts.later(seconds=79)
    running.subscribe("t:x")  # something to look at
    running.parts.later(seconds=2)
    settled(running, publisher, lambda: running.registration.upstream[0] != before)
    assert publisher.operations == ["Subscribe", "Renew"]
    renewed = running.registration.upstream[0].terminates_ms
    assert renewed is not None
    assert before.terminates_ms is not None
    assert 80_000 <= renewed - before.terminates_ms <= 82_000


def test_what_the_publisher_has_forgotten_is_subscribed_anew(running: Running, publisher: Publisher) -> None:
    running.post(register(publisher, "t:a"))
    running.subscribe("t:a")
    settled(running, publisher, lambda: len(running.registration.upstream) == 1)
    before = running.registration.upstream[0].reference
    publisher.subscriptions.clear()
    running.parts.later(seconds=500)
    settled(
        running,
        publisher,
        lambda: bool(running.registration.upstream) and running.registration.upstream[0].reference != before,
    )
    assert publisher.operations == ["Subscribe", "Renew", "Subscribe"]


def test_another_process_goes_on_where_this_one_ended(running: Running, publisher: Publisher) -> None:
    running.post(register(publisher, "t:a"))
    path = running.subscribe("t:a")
    settled(running, publisher, lambda: len(running.registration.upstream) == 1)
    running.stop_worker()
    running.start_worker()
    running.post("<wsnt:Unsubscribe/>", path)
    settled(running, publisher, lambda: running.registration.upstream[0].paused)
    assert publisher.operations == ["Subscribe", "PauseSubscription"]


def test_reference_parameters_are_echoed(running: Running, publisher: Publisher) -> None:
    publisher.reference_parameters = (
        '<wsa:ReferenceParameters><k:Key xmlns:k="urn:k">7</k:Key></wsa:ReferenceParameters>'
    )
    running.post(register(publisher, "t:a"))
    path = running.subscribe("t:a")
    settled(running, publisher, lambda: len(running.registration.upstream) == 1)
    running.post("<wsnt:Unsubscribe/>", path)
    settled(running, publisher, lambda: running.registration.upstream[0].paused)
    key = publisher.asked[-1].message.find("{*}Header/{urn:k}Key")
    assert key is not None
    assert (key.text, key.get(f"{{{WSA}}}IsReferenceParameter")) == ("7", "true")


def test_a_publisher_cannot_send_us_elsewhere(running: Running, publisher: Publisher) -> None:
    """The address in its answer is judged like the one that it registered."""
    publisher.reference_parameters = (
        "<wsa:EndpointReference><wsa:Address>file:///x</wsa:Address></wsa:EndpointReference>"
    )
    running.post(register(publisher, "t:a"))
    running.subscribe("t:a")
    publisher.wait_for(lambda: len(publisher.asked) >= 2, "refused and tried again")
    assert running.registration.upstream == ()


def test_trouble_with_the_publisher_of_a_registration_that_is_gone_is_not_kept() -> None:
    async def no_threads_left() -> None:
        raise RuntimeError("cannot schedule new futures after shutdown")

    async def scenario() -> dict[str, object]:
        worker = DemandWorker(GatewayParts().gateway, lambda: 0)
        for number in range(10):
            worker._start(f"gone{number}", no_threads_left())
        while worker._busy:
            await asyncio.sleep(0)
        return dict(worker._troubles)

    assert asyncio.run(scenario()) == {}


def test_never_as_net_has_it_need_not_be_renewed(running: Running, publisher: Publisher) -> None:
    publisher.ends = "9999-12-31T23:59:59.9999999-05:00"
    running.post(register(publisher, "t:a"))
    running.subscribe("t:a")
    settled(running, publisher, lambda: len(running.registration.upstream) == 1)
    assert running.registration.upstream[0].terminates_ms is None
