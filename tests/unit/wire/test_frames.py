"""Frames for any division of the bytes; for arbitrary bytes see the fuzz target `frames`."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.wire import frames
from arborcast.wire.frames import HEAD_BYTES, MAGIC, Decoder, Frame, FrameError, FrameKind

LIMIT = 1_000

FRAMES = st.lists(
    st.builds(Frame, st.integers(0, 255), st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.binary(max_size=60)),
    max_size=6,
)


def written(frame: Frame) -> bytes:
    head = MAGIC + bytes([frames.VERSION, frame.kind]) + frame.flags.to_bytes(2) + frame.correlation.to_bytes(4)
    return head + len(frame.body).to_bytes(4) + frame.body


def read(pieces: list[bytes], limit: int = LIMIT) -> tuple[list[Frame], str]:
    """The frames, and the error that ended them."""
    decoder, found = Decoder(limit), []
    try:
        for piece in pieces:
            for frame in decoder.feed(piece):
                found.append(frame)
    except FrameError as error:
        return found, str(error)
    return found, ""


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = sorted({min(each, len(data)) for each in at} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(places)]


@given(FRAMES, st.lists(st.integers(0, 400)))
def test_frames_are_read_for_any_division(sent: list[Frame], at: list[int]) -> None:
    assert read(cut(b"".join(map(written, sent)), at)) == (sent, "")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "begins with"),
        (MAGIC + b"\x02" + bytes(HEAD_BYTES - 5), "version"),
        (MAGIC + b"\x01\x01" + bytes(6) + (LIMIT + 1).to_bytes(4), "max_frame_bytes"),
    ],
)
def test_other_bytes_end_the_reading(data: bytes, reason: str) -> None:
    good = Frame(FrameKind.PING, 0, 7, b"")
    found, error = read([written(good) + data])
    assert found == [good], "earlier frames count"
    assert reason in error


def test_bodies_of_frames() -> None:
    body = frames.PublishBody("a/b", b"<x/>", {"unit": "bar"}, 5)
    data = frames.encode(FrameKind.PUBLISH, 9, body, frames.LOOSE)
    decoder = Decoder(LIMIT)
    frame, *again = decoder.feed(data * 4 + data[:20])
    assert (again, decoder.pending, decoder.expected) == ([frame] * 3, 20, len(data))
    assert (frame.kind, frame.flags, frame.correlation) == (FrameKind.PUBLISH, frames.LOOSE, 9)
    assert frames.read_body(frame, frames.PublishBody) == body
    for wrong, reason in ((b"\xc1", "SUBSCRIBE"), (frame.body, "expression")):
        with pytest.raises(frames.BodyError, match=reason):
            frames.read_body(Frame(FrameKind.SUBSCRIBE, 0, 1, wrong), frames.SubscribeBody)
