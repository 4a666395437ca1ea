"""Checks of bytes for the framed edge, and of messages and subscriptions of ZeroMQ: they are
answered, refused, or end the connection."""

from __future__ import annotations

import asyncio

from lxml import etree

from arborcast.ingest.framed.session import Edge, FramedSession
from arborcast.ingest.settings import FramedSettings
from arborcast.ingest.zeromq.messages import MessageError, expression_of, read_publication, read_topic, written_topic
from arborcast.ingest.zeromq.prefixes import LONGEST_PREFIX, MOST_PREFIXES, Peer, Prefixes
from arborcast.topic_model.expressions import parse_friendly
from arborcast.wire import frames
from arborcast.wire.frames import (
    Decoder,
    Frame,
    FrameError,
    FrameKind,
    PublishBody,
    SubscribeBody,
    UnsubscribeBody,
    encode,
)
from tests.fuzz._generate import Target, loop
from tests.support.gateway_parts import GatewayParts

_LIMIT = 10_000

_CONNECT = encode(FrameKind.CONNECT, 1, frames.ConnectBody(client="fuzz"))

_FRAME_SEEDS = (
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
        """Always writable."""

    def read(self, more: bool, why: str) -> None:
        """Never paused."""

    def known(self) -> None:
        """Ignored: frames are short."""

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
    """The frames do not depend on the pieces, and a session answers them all with frames, without a defect."""
    found = _read([data])
    if found != _read([data[number : number + 1] for number in range(len(data))]):
        raise AssertionError("the frames depend on the pieces")
    loop().run_until_complete(_converse(found[0]))


async def _converse(received: list[Frame]) -> None:
    parts, link = GatewayParts(), _Link()
    settings = FramedSettings(max_frame_bytes=_LIMIT)
    session = FramedSession(Edge(parts.gateway, settings), link, {"headers": []})
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


_PART = b"\x1e"
"""Between the parts of a multipart message in an input."""

_ZMQ_SEEDS = (
    _PART.join((b"a/b", b"<x>1</x>", b'{"unit": "bar"}')),
    _PART.join((b"ALL:ALARM", b"4 < 5", b"")),
    _PART.join((b"{urn:t}a", b" <x xmlns='urn:x'/>")),
    _PART.join((b"\x01plant/", b"\x01plant/a", b"\x00plant/", b"\x01{urn:t}a/b", b"\x00ALL:ALARM")),
)


def check_zeromq(data: bytes) -> None:
    """A message is refused, or becomes a PUBLISH that the gateway answers; unsubscriptions of some peers end no
    subscription of another one."""
    parts = data.split(_PART)
    try:
        body, flags = read_publication(parts)
        body.properties = body.properties or {"task": read_topic(parts[0])}
    except MessageError:
        pass
    else:
        written_topic(body.topic, "colon")
        connect = Frame(FrameKind.CONNECT, 0, 1, _CONNECT[frames.HEAD_BYTES :])
        (publish,) = Decoder(2**20).feed(encode(FrameKind.PUBLISH, 2, body, flags))
        loop().run_until_complete(_converse([connect, publish]))
    _check_prefixes(parts)


def _check_prefixes(parts: list[bytes]) -> None:
    """An honest peer holds the first prefix throughout."""
    closed: set[Peer] = set()
    prefixes, honest = Prefixes(lambda peer: peer not in closed), (0, 0)
    held = parts[0][1:][:LONGEST_PREFIX]
    assert prefixes.begin(held, honest)
    for number, part in enumerate(parts):
        word, prefix = part[:1], part[1:]
        peer = (1, len(part) % 3 + number // 8)
        parse_friendly(expression_of(prefix) or "a")
        if word == b"\x01":
            try:
                prefixes.begin(prefix, peer)
            except MessageError:
                assert len(prefix) > LONGEST_PREFIX or number >= MOST_PREFIXES // 2
        elif prefixes.end(prefix, peer) and prefix == held:
            raise AssertionError("ended by another peer")
        if number % 8 == 7:
            closed.add(peer)
        if held in prefixes.sweep():
            raise AssertionError("ended with its peer connected")


_FRAME_SNIPPETS = (
    *(b"ARBC", b"ARBC\x01", b"\x00" * 4, b"\xff" * 4, b"\x01", b"\x03", b"\x05", b"\x63", b"\x81", b"\xa5topic"),
    *(b"\xa7payload", b"\xc4\x04<x/>", b"\xa1a", b"\xaaproperties", b"\xaaexpression", b"\xa3a//", b"\xc0", b"\xde"),
)
_ZMQ_SNIPPETS = (_PART, _PART * 8, b"\x01", b"\x00", b'{"a": ""}', b"a/" * 40, *b"< { } {} / : // a".split())

TARGETS = {
    "frames": Target(check_frames, _FRAME_SEEDS, _FRAME_SNIPPETS),
    "zeromq": Target(check_zeromq, _ZMQ_SEEDS, _ZMQ_SNIPPETS),
}
