"""What must hold for whatever comes to the framed edge: it is answered, refused, or ends the connection."""

from __future__ import annotations

import asyncio

from lxml import etree

from ingest.framed import frames
from ingest.framed.frames import (
    Decoder,
    Frame,
    FrameError,
    FrameKind,
    PublishBody,
    SubscribeBody,
    UnsubscribeBody,
    encode,
)
from ingest.framed.session import Edge, FramedSession, FrameLimits
from ingest.http.inflight import Inflight
from tests.support.gateway_parts import GatewayParts

_LIMIT = 10_000

_CONNECT = encode(FrameKind.CONNECT, 1, frames.ConnectBody(client="fuzz"))

FRAME_SEEDS = (
    _CONNECT + encode(FrameKind.PUBLISH, 2, PublishBody("a/b", b"<x>1</x>", {"unit": "bar"}, 5, lifespan=2.0)),
    _CONNECT + encode(FrameKind.PUBLISH, 2, PublishBody("{urn:t}a", b"4 < 5", key="k"), frames.LOOSE),
    _CONNECT + encode(FrameKind.SUBSCRIBE, 2, SubscribeBody("a//.", "archive", {"Priority": "5"}, ["{urn:m}x"])),
    _CONNECT + encode(FrameKind.UNSUBSCRIBE, 2, UnsubscribeBody("x")) + encode(FrameKind.ACK, 3),
    _CONNECT + encode(FrameKind.REFUSE, 2, frames.RefuseBody("no")) + encode(FrameKind.PING) + encode(FrameKind.CLOSE),
)


class _Link:
    def __init__(self) -> None:
        self.sent = bytearray()
        self.open = True

    def send(self, data: bytes) -> None:
        self.sent += data

    async def until_writable(self) -> None:
        """It always is."""

    def read(self, more: bool, why: str) -> None:
        """Everything is there."""

    def known(self) -> None:
        """It makes no difference: frames are short."""

    def close(self) -> None:
        self.open = False


def _read(pieces: list[bytes]) -> tuple[list[Frame], bool]:
    decoder = Decoder(_LIMIT)
    found: list[Frame] = []
    try:
        for piece in pieces:
            for frame in decoder.feed(piece):
                found.append(frame)
    except FrameError:
        return found, True
    return found, False


def check_frames(data: bytes) -> None:
    """Whole and byte by byte it is the same, and a session answers all of it in frames, without a defect."""
    found = _read([data])
    if found != _read([data[number : number + 1] for number in range(len(data))]):
        raise AssertionError("it depends on how the bytes are cut up")
    asyncio.run(_converse(found[0]))


async def _converse(received: list[Frame]) -> None:
    parts, link = GatewayParts(), _Link()
    session = FramedSession(
        Edge(parts.gateway, Inflight(2**26), FrameLimits(_LIMIT, 60), lambda: True), link, {"headers": []}
    )
    for frame in received:
        if link.open:
            session.received(frame)
            await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    await session.close()
    for frame in Decoder(2**20).feed(bytes(link.sent)):
        if frame.kind == FrameKind.ERROR and frames.read_body(frame, frames.ErrorBody).code == "Defect":
            raise AssertionError(f"a defect: {frames.read_body(frame, frames.ErrorBody)}")
    for each in parts.notifications.accepted:
        etree.fromstring(each.payload)
