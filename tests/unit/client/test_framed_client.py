"""The framed client: messages before the handler of their subscription; addresses."""

from __future__ import annotations

import gc
import itertools
import queue
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from arborcast.client import framed
from arborcast.client.framed import Connection, ConnectionFactory, Message, _Wire
from arborcast.core.errors import ConfigError
from arborcast.wire import frames
from arborcast.wire.frames import Decoder, ErrorBody, Frame, FrameKind, MessageBody, ReceiptBody, UnsubscribeBody


class _Script(_Wire):
    """A wire without a socket."""

    def __init__(self) -> None:
        self.silence_s = 60.0
        self.data: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.answered = threading.Event()
        self.sent: list[bytes] = []

    def receive(self) -> bytes:
        return self.data.get()

    def send(self, data: bytes) -> None:
        self.sent.append(data)
        self.answered.set()

    def end(self) -> None:
        self.data.put(b"")

    def close(self) -> None:
        """No socket."""


def message(text: bytes) -> bytes:
    return frames.encode(FrameKind.MESSAGE, 1, MessageBody("s", "a", text))


def test_a_later_message_does_not_overtake_those_before_the_handler() -> None:
    wire = _Script()
    got: list[bytes] = []
    third = threading.Event()

    def handle(_: Frame, body: MessageBody) -> None:
        got.append(body.payload)
        if body.payload == b"1":
            wire.data.put(message(b"3"))
            third.wait(0.5)  # the time in which it would overtake
        if body.payload == b"3":
            third.set()

    with Connection(wire, 60) as connection:
        wire.data.put(message(b"1") + message(b"2") + frames.encode(FrameKind.PING))
        assert wire.answered.wait(60)
        connection.handle("s", handle)
        assert third.wait(60)
    assert got == [b"1", b"2", b"3"]


def test_a_session_continues_after_a_failure_whose_text_cannot_be_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    # pytest-xdist could not encode its log either.
    monkeypatch.setattr(framed.logger, "disabled", True)
    wire = _Script()
    handled: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def handle(received: Message) -> None:
        handled.put(received.payload)
        if received.payload == b"1":
            raise FileNotFoundError("caf\udce9.xml")

    with Connection(wire, 60) as connection, ThreadPoolExecutor(1) as threads:
        made = threads.submit(connection.session().consumer, "a", handle)
        assert wire.answered.wait(60)
        wire.data.put(frames.encode(FrameKind.RECEIPT, 1, ReceiptBody("s")) + message(b"1") + message(b"2"))
        made.result(60)
        assert [handled.get(timeout=60) for _ in range(2)] == [b"1", b"2"]


def test_the_answer_to_each_request_is_found_also_after_the_last_number() -> None:
    wire = _Script()
    with Connection(wire, 60) as connection:
        connection._numbers = itertools.count(2**32 - 2)
        refused = [connection.begin(FrameKind.UNSUBSCRIBE, UnsubscribeBody("s")) for _ in range(4)]
        for request in Decoder(1_000).feed(b"".join(wire.sent)):
            wire.data.put(frames.encode(FrameKind.ERROR, request.correlation, ErrorBody("Unknown", "no subscription")))
        assert [each.result(60).kind for each in refused] == [FrameKind.ERROR] * 4


def test_unused_sessions_are_not_kept() -> None:
    with Connection(_Script(), 60) as connection:
        session = weakref.ref(connection.session())
        gc.collect()
        assert session() is None


@pytest.mark.parametrize("url", ["http://h:1", "framed://h", "framed://h:99999", "framed://h:x", "framed://[::1"])
def test_an_address_that_is_none_is_named(url: str) -> None:
    with pytest.raises(ConfigError, match="framed://HOST:PORT"):
        ConnectionFactory(url).connection()
