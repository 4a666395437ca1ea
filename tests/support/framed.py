"""A framed edge over lists (`GatewayParts`), on an event loop in a separate thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop
import zmq

from arborcast.client.framed import ConnectionFactory
from arborcast.ingest.access.settings import LimitSettings
from arborcast.ingest.framed.server import FramedServer
from arborcast.ingest.http.inflight import Inflight
from arborcast.ingest.settings import FramedSettings, ZmqSettings
from arborcast.ingest.zeromq.edge import ZmqEdge
from arborcast.topic_model.records.pull import StoredMessage
from arborcast.wire import frames
from arborcast.wire.frames import Decoder, Frame, FrameKind
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts

ResultT = TypeVar("ResultT")


class FramedEdge:
    """A framed edge for tests. `parts` belong to the loop: access them with `on_loop`."""

    def __init__(
        self, parts: GatewayParts, settings: FramedSettings, limits: LimitSettings, inflight_bytes: int
    ) -> None:
        self.parts = parts
        self.inflight = parts.gateway.inflight = Inflight(inflight_bytes)
        self._settings, self._limits = settings, limits
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="framed-edge")
        self._thread.start()
        self.server: FramedServer = self.on_loop(self._start)

    @property
    def url(self) -> str:
        return f"framed://127.0.0.1:{self.port}"

    def on_loop(self, work: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """Run it on the loop's thread."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(120)

    def stop(self) -> None:
        """Stop the server and the loop's thread."""
        self.on_loop(self.server.stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(120)
        self._loop.close()

    async def _start(self) -> FramedServer:
        parts, settings, limits = self.parts, self._settings, self._limits
        server = FramedServer(parts.gateway, settings, limits)
        await server.start(self._listener)
        return server


@contextmanager
def framed_edge(
    parts: GatewayParts | None = None,
    settings: FramedSettings | None = None,
    limits: LimitSettings | None = None,
    inflight_bytes: int = 64 * 1024 * 1024,
) -> Iterator[FramedEdge]:
    """Running while the context is open."""
    edge = FramedEdge(parts or GatewayParts(), settings or FramedSettings(), limits or LimitSettings(), inflight_bytes)
    try:
        yield edge
    finally:
        edge.stop()


class FramedClient:
    """One connection to a framed edge, frame by frame; without `connect` no frame is sent."""

    def __init__(self, edge: FramedEdge, user: str = "", password: str = "", *, connect: bool = True) -> None:
        self.socket = socket.create_connection(("127.0.0.1", edge.port), 120)
        self._decoder = Decoder(2**30)
        self._frames: list[Frame] = []
        if connect:
            assert self.request(FrameKind.CONNECT, frames.ConnectBody(user, password)).kind == FrameKind.CONNECTED

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def request(self, kind: FrameKind, body: frames.Body | None = None, number: int = 1) -> Frame:
        """The answer to one frame."""
        self.send(frames.encode(kind, number, body))
        return self.read()

    def read(self) -> Frame:
        while not self._frames:
            data = self.socket.recv(65_536)
            assert data, "the connection has ended"
            self._frames += self._decoder.feed(data)
        return self._frames.pop(0)

    def error(self) -> frames.ErrorBody:
        frame = self.read()
        assert frame.kind == FrameKind.ERROR
        return frames.read_body(frame, frames.ErrorBody)

    def subscribe(self, topic: str, name: str = "", window: int = 100) -> str:
        """The id of a new subscription."""
        receipt = self.request(FrameKind.SUBSCRIBE, frames.SubscribeBody(topic, name, window=window), 2)
        return frames.read_body(receipt, frames.ReceiptBody).id

    def is_alive(self) -> bool:
        """Whether the next frame is the answer to a PING, with no frame before it."""
        return self.request(FrameKind.PING, number=99).kind == FrameKind.PONG

    def ends(self) -> bool:
        """Whether the connection was closed with no other frame than the reason."""
        while data := self.socket.recv(65_536):
            self._frames += self._decoder.feed(data)
        return all(frame.kind in (FrameKind.CLOSE, FrameKind.ERROR) for frame in self._frames)

    def close(self) -> None:
        self.socket.close()


Connects = Callable[..., FramedClient]


def client(edge: FramedEdge, user: str = "", password: str = "") -> ConnectionFactory:
    return ConnectionFactory(edge.url, user, password, timeout_s=120)


def stored(topic: str, payload: str, name: str, producer: str = "") -> StoredMessage:
    element = soap.message(topic, payload).replace("<wsnt:Message>", f"{producer}<wsnt:Message>")
    declared = f'<wsnt:NotificationMessage xmlns:wsnt="{soap.WSNT}">'
    return StoredMessage(element.replace("<wsnt:NotificationMessage>", declared).encode(), name)


def deliver(edge: FramedEdge, subscription: str, *messages: StoredMessage) -> None:
    """Stores messages like dispatch."""
    edge.on_loop(lambda: edge.parts.pulls.put(subscription, messages))


def publication(number: int, payload: bytes = b"<x/>", properties: dict[str, str] | None = None) -> bytes:
    """A frame with a publication to the topic `a`."""
    return frames.encode(FrameKind.PUBLISH, number, frames.PublishBody("a", payload, properties or {}))


def element(size: int) -> bytes:
    return b"<x>" + b"y" * size + b"</x>"


@contextmanager
def zmq_edge(parts: GatewayParts, user: str, password: str, folder: Path) -> Iterator[Callable[..., list[bytes]]]:
    """A ZeroMQ edge with this user at a framed edge; returns a function that sends requests as its REQ socket."""
    address = f"ipc://{folder}/edge"
    settings = ZmqSettings(
        subscribe=f"{address}-s", publish="", pipeline="", requests=address, user=user, password=password
    )
    with framed_edge(parts) as edge, zmq.Context() as context, context.socket(zmq.REQ) as req:
        made = ZmqEdge(settings, ConnectionFactory(edge.url, timeout_s=120), 1024 * 1024, lambda: None)
        thread = threading.Thread(target=made.run)
        thread.start()
        req.setsockopt(zmq.RCVTIMEO, 120_000)
        req.setsockopt(zmq.LINGER, 0)
        req.connect(address)

        def request(*parts: bytes) -> list[bytes]:
            req.send_multipart(parts)
            return req.recv_multipart()

        try:
            yield request
        finally:
            made.stop()
            thread.join(120)
