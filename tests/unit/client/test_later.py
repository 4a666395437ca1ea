"""Callbacks that accept a message for later: the answer to the push, and the result."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from collections.abc import Mapping
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from arborcast.client import ClientError, HttpAnswer, ResultNotTaken
from arborcast.client.later import DeferredResult
from arborcast.client.listener import ListenerApp, ReceivedMessage
from arborcast.client.testing import MemoryTransport
from arborcast.client.values import BrokerUnreachable
from tests.support import soap_messages as soap

ADDRESS = "http://broker/results/promise.k1.mark"
HEADERS = {"Arborcast-Callback": ADDRESS, "Arborcast-Push": "p-7"}
ONE = soap.envelope(soap.notify(soap.message(payload="<a/>")))
TWO = soap.envelope(soap.notify(soap.message(payload="<a/>"), soap.message(payload="<b/>")))


class Broker(MemoryTransport):
    """A broker that takes results of callbacks."""

    @property
    def results(self) -> list[dict[str, Any]]:
        for each in self.sent:
            assert (each.url, each.headers) == (ADDRESS, {"Content-Type": "application/json"})
        return [json.loads(each.body) for each in self.sent]


def answered(app: ListenerApp, body: bytes = ONE, headers: Mapping[str, str] = HEADERS) -> tuple[int, str]:
    """Status of the answer, and its result header."""
    receive, send = AsyncMock(return_value={"type": "http.request", "body": body, "more_body": False}), AsyncMock()
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    asyncio.run(app({"type": "http", "method": "POST", "headers": encoded}, receive, send))
    (start,) = send.await_args_list[0].args
    return start["status"], dict(start["headers"]).get(b"arborcast-result", b"").decode()


def taken(broker: Broker, body: bytes = ONE) -> list[DeferredResult]:
    """The messages of a push, accepted for later."""
    found: list[DeferredResult] = []
    assert answered(ListenerApp(lambda each: found.append(each.later()), transport=broker), body) == (202, "later")
    return found


@pytest.mark.parametrize("coroutine", [False, True])
def test_the_result_goes_to_the_address_in_the_push(coroutine: bool) -> None:
    broker, found = Broker(), list[DeferredResult]()
    received = (AsyncMock if coroutine else Mock)(side_effect=lambda message: found.append(message.later()))
    app = ListenerApp(received, transport=broker)
    assert answered(app) == (202, "later")
    assert broker.results == []
    found[0].delivered("printed")
    found[0].failed("too late to change that")
    assert broker.results == [{"push": "p-7", "state": "delivered", "text": "printed"}]


@pytest.mark.parametrize(
    ("results", "state"),
    [
        (("delivered", "delivered"), "delivered"),
        (("delivered", "failed"), "failed"),
        (("refused", "delivered"), "refused"),
        (("failed", "refused"), "failed"),
    ],
)
def test_several_messages_have_one_result(results: tuple[str, str], state: str) -> None:
    broker = Broker()
    first, second = taken(broker, TWO)
    getattr(first, results[0])("one")
    assert broker.results == []
    getattr(second, results[1])("two")
    assert broker.results == [{"push": "p-7", "state": state, "text": "one; two"}]


@pytest.mark.parametrize(("result", "status"), [("delivered", 202), ("failed", 500), ("refused", 400), ("raised", 500)])
def test_an_early_result_or_error_is_in_the_answer(result: str, status: int) -> None:
    broker, found = Broker(), list[DeferredResult]()

    def received(message: ReceivedMessage) -> None:
        found.append(message.later())
        if result == "raised":
            raise ValueError("not now")
        getattr(found[0], result)("at once")

    assert answered(ListenerApp(received, transport=broker)) == (status, "")
    found[0].delivered()
    assert broker.results == []


@pytest.mark.parametrize(
    "headers", [{}, {"Arborcast-Callback": "file:///etc/results/x"}, {"Arborcast-Callback": "http://h/x"}]
)
def test_a_push_without_an_address_for_results(headers: dict[str, str]) -> None:
    def received(message: ReceivedMessage) -> None:
        with pytest.raises(ClientError, match="this push"):
            message.later()

    assert answered(ListenerApp(received, transport=Broker()), headers=headers) == (202, "")


def test_later_after_the_answer_is_an_error() -> None:
    kept: list[ReceivedMessage] = []
    answered(ListenerApp(kept.append, transport=Broker()))
    with pytest.raises(ClientError, match="already answered"):
        kept[0].later()
    reread = pickle.loads(pickle.dumps(kept[0]))  # noqa: S301  # what this test has just written
    for copied in (reread, copy.deepcopy(kept[0])):
        assert copied == kept[0]
        with pytest.raises(ClientError, match="push to a listener"):
            copied.later()


def test_a_result_is_sent_until_the_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("arborcast.client.later.time.sleep", waited.append)
    broker = Broker(BrokerUnreachable("no"), HttpAnswer(503, {"Retry-After": "3"}), HttpAnswer(429))
    (later,) = taken(broker)
    later.delivered()
    assert broker.results[-1]["state"] == "delivered"
    assert waited == [0.5, 3.0, 2.0]

    (later,) = taken(Broker(*[BrokerUnreachable("no")] * 10))
    with pytest.raises(BrokerUnreachable):
        later.failed()

    (later,) = taken(Broker(HttpAnswer(410, {}, b"until 5 s ago\n")))
    with pytest.raises(ResultNotTaken, match="until 5 s ago") as caught:
        later.delivered()
    assert caught.value.status == 410
