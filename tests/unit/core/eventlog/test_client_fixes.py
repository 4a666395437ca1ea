from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from kafka.net.manager import KafkaConnectionManager

from arborcast.core.eventlog.client_fixes import CachingSelector, ClosingSocket, Connections, Loop, PlainTransport
from arborcast.core.eventlog.loop_producer import LoopProducer
from tests.support.waiting import wait_until_async

Pair = tuple[socket.socket, socket.socket]


class CountingSelector(CachingSelector):
    """Counts calls of the system's selector."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        inner: Any = vars(self)["_selector"]  # epoll, kqueue or poll
        outer = self

        class Counting:
            def __getattr__(self, name: str) -> Any:
                if name in ("register", "unregister", "modify"):
                    outer.calls.append(name)
                return getattr(inner, name)

        self._selector = Counting()


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop(selector=CachingSelector)
    yield made
    made.close()


def test_one_system_call_for_successive_answers(pair: Pair) -> None:
    ours, theirs = pair
    with CountingSelector() as selector:
        for number in range(5):
            selector.register(ours, selectors.EVENT_READ, number)
            theirs.send(b"answer")
            [(key, events)] = selector.select(120)
            assert (key.fileobj, key.data, events) == (ours, number, selectors.EVENT_READ)
            ours.recv(100)
            selector.unregister(ours)
        assert selector.calls == ["register"]
        # Without a wait the result is reported neither now nor later.
        theirs.send(b"unasked")
        assert selector.select(120) == []
        assert selector.calls == ["register", "unregister"]
        with pytest.raises(KeyError):
            selector.get_key(ours)
        selector.register(ours, selectors.EVENT_READ)
        assert [key.fileobj for key, _ in selector.select(120)] == [ours]
        ours.recv(100)
        selector.modify(ours, selectors.EVENT_READ | selectors.EVENT_WRITE)
        assert [events for _, events in selector.select(120)] == [selectors.EVENT_WRITE]
        selector.modify(ours, selectors.EVENT_READ)
        assert selector.select(0) == []
        theirs.send(b"answer")
        assert selector.get_key(ours).events == selectors.EVENT_READ
        assert [events for _, events in selector.select(120)] == [selectors.EVENT_READ]


def test_a_socket_with_a_reused_descriptor_is_registered(pair: Pair) -> None:
    _, theirs = pair
    with CachingSelector() as selector:
        closed = socket.socket()
        number = closed.fileno()
        selector.register(closed, selectors.EVENT_READ)
        selector.unregister(closed)
        closed.close()
        with theirs.dup() as successor:
            assert successor.fileno() == number
            pair[0].send(b"answer")
            selector.register(successor, selectors.EVENT_READ, "new")
            assert [key.data for key, _ in selector.select(120)] == ["new"]


def test_a_loop_is_woken_once_per_iteration(loop: Loop) -> None:
    for _ in range(3):
        for _ in range(1_000):
            loop.wakeup()
        assert len(loop._wakeup_r.recv(2_000, socket.MSG_PEEK)) == 1
        loop.poll(timeout_ms=120_000)
        with pytest.raises(BlockingIOError):
            loop._wakeup_r.recv(1)


def test_bytes_are_sent_at_once_and_the_rest_when_writable(pair: Pair, loop: Loop) -> None:
    ours, theirs = pair
    transport = PlainTransport(loop, ours)
    transport.write(b"small")
    assert theirs.recv(100, socket.MSG_DONTWAIT) == b"small"
    large = bytes(range(256)) * 40_000
    transport.write(large)
    transport.write(b"behind it")
    arrived = b""
    while len(arrived) < len(large) + 9:
        loop.poll(timeout_ms=0)
        arrived += theirs.recv(1 << 20)
    assert arrived == large + b"behind it"
    # A closed peer ends the connection, and raises no error in the writer.
    theirs.close()
    transport.write(b"not read")
    assert not transport.is_closing()
    loop.poll(timeout_ms=0)
    assert transport.is_closing()
    with pytest.raises(RuntimeError, match="closed"):
        transport.write(b"more")


async def test_only_the_connection_in_progress_uses_resolved_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    place, found = ("broker.example", 9092), [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 9))]
    used: list[Any] = []

    async def build(_self: object, node: Any, **_: object) -> None:
        used.append(dict(ClosingSocket.resolved))
        raise OSError("refused before the addresses are used")

    monkeypatch.setattr(KafkaConnectionManager, "_build_transport", build)
    connections: Any = Connections.__new__(Connections)
    connections._net = SimpleNamespace(resolve=AsyncMock(return_value=found))
    with pytest.raises(OSError, match="refused"):
        await connections._build_transport(SimpleNamespace(host=place[0], port=place[1]))
    assert used == [{place: found}]
    assert ClosingSocket.resolved == {}


async def test_an_unused_resolution_leaves_no_state() -> None:
    looked_up = LoopProducer._resolve(cast(Any, SimpleNamespace(_step=lambda: None)), "127.0.0.1", 9)
    await wait_until_async(lambda: looked_up.is_done, "it is looked up")
    assert looked_up.value[0][4] == ("127.0.0.1", 9)
    assert ClosingSocket.resolved == {}


def test_a_dropped_socket_is_closed_without_a_warning() -> None:
    sock = ClosingSocket("direct://").socket(socket.AF_INET)
    number = sock.fileno()
    del sock
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
