"""The connection of the ZeroMQ edges to the gateway."""

from __future__ import annotations

import threading
from typing import cast

from arborcast.client.framed import Connection, ConnectionFactory
from arborcast.client.values import FaultReceived
from arborcast.ingest.zeromq.upstream import FramedUpstream
from arborcast.wire import frames
from tests.support.waiting import wait_until


class _Refuses:
    """A connection on which each subscription is refused."""

    def __init__(self) -> None:
        self.lost = threading.Event()
        self.asked: list[str] = []

    def request(self, kind: frames.FrameKind, body: frames.SubscribeBody | frames.UnsubscribeBody) -> frames.Frame:
        assert isinstance(body, frames.SubscribeBody)
        self.asked.append(body.expression)
        raise FaultReceived("not allowed", "Forbidden", 0)

    def close(self) -> None:
        self.lost.set()


class _Grants(_Refuses):
    """A connection on which each subscription is granted; it notes which of them have a handler at the end of one."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers: dict[str, object] = {}
        self.at_end: list[str] | None = None

    def request(self, kind: frames.FrameKind, body: frames.SubscribeBody | frames.UnsubscribeBody) -> frames.Frame:
        if isinstance(body, frames.UnsubscribeBody):
            self.at_end = sorted(self.handlers)
            return frames.Frame(frames.FrameKind.RECEIPT, 0, 1, b"")
        receipt = frames.encode(frames.FrameKind.RECEIPT, 1, frames.ReceiptBody(f"id of {body.expression}"))
        return next(frames.Decoder(2**20).feed(receipt))

    def handle(self, subscription: str, handler: object) -> None:
        self.handlers[subscription] = handler
        if handler is None:
            del self.handlers[subscription]


class _Factory(ConnectionFactory):
    def connection(self) -> Connection:
        return cast(Connection, MADE.pop())


MADE: list[_Refuses] = []


def test_a_refusal_is_forgotten_with_its_subscription() -> None:
    refuses = _Refuses()
    MADE.append(refuses)
    upstream = FramedUpstream(_Factory())
    try:
        for expression in ("a", "b"):
            upstream.subscribe(frames.SubscribeBody(expression))
        wait_until(lambda: sorted(upstream._failed) == ["a", "b"])
        upstream.unsubscribe("a")
        wait_until(lambda: list(upstream._failed) == ["b"])
        assert sorted(refuses.asked) == ["a", "b"]
    finally:
        upstream.close()


def test_a_subscription_has_its_handler_until_it_has_ended() -> None:
    grants = _Grants()
    MADE.append(grants)
    upstream = FramedUpstream(_Factory())
    try:
        upstream.subscribe(frames.SubscribeBody("a"))
        wait_until(lambda: upstream.is_in_force("a"))
        upstream.unsubscribe("a")
        wait_until(lambda: grants.at_end is not None)
        assert grants.at_end == ["id of a"], "messages that come until then are taken"
        wait_until(lambda: not grants.handlers)
    finally:
        upstream.close()
