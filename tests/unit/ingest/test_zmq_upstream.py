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

    def request(self, _kind: frames.FrameKind, body: frames.SubscribeBody) -> frames.Frame:
        self.asked.append(body.expression)
        raise FaultReceived("not allowed", "Forbidden", 0)

    def close(self) -> None:
        self.lost.set()


class _Factory(ConnectionFactory):
    def connection(self) -> Connection:
        return cast(Connection, REFUSES)


REFUSES = _Refuses()


def test_a_refusal_is_forgotten_with_its_subscription() -> None:
    upstream = FramedUpstream(_Factory())
    try:
        for expression in ("a", "b"):
            upstream.subscribe(frames.SubscribeBody(expression))
        wait_until(lambda: sorted(upstream._failed) == ["a", "b"])
        upstream.unsubscribe("a")
        wait_until(lambda: list(upstream._failed) == ["b"])
        assert sorted(REFUSES.asked) == ["a", "b"]
    finally:
        upstream.close()
