"""Targets of fuzzing: a check, and inputs mutated from valid ones: pieces removed, inserted, taken from another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from hypothesis import strategies as st

from arborcast.core.security.keyring import KeyRing


@dataclass(frozen=True)
class Target:
    """A check of one input, valid inputs, and pieces to insert into them."""

    check: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    snippets: tuple[bytes, ...]


KEYS = KeyRing({"k1": b"k" * 32})
SECRET = "whsec_" + "QUFB" * 8

XML_SNIPPETS = (
    *b"< > & \" ' / : ]]> <!-- --> <![CDATA[ <? ?> = - [ {".split(),
    *(b"&lt;", b"&amp;", b"&#0;", b"&#x110000;", b"&x;", b"<!DOCTYPE a>", b"<!DOCTYPE a [<!ENTITY x 'y'>]>"),
    *(b"xmlns=''", b"xmlns:s='urn:x'", b"xml:lang='x'", b"<a>" * 300, b"<?xml version='1.0' encoding='utf-16'?>"),
    *b"wsnt:Notify wsnt:Topic wsa:Address s:Body s:Header PT1S P9999Y 2030-01-01T00:00:00Z".split(),
    *b"wsnt:Unsubscribe wsnt:Renew p:Signing p:Secret urn:arborcast:policy xsi:nil='1'".split(),
)

TOPIC_TEXTS = tuple(b"t:a/b a//.|t:b/* //x:b//. */a a:b:c t:a//*/x:c {urn:t}a/b boolean(//t:a[b])".split())


def reasoned(error: Exception, good: bool = True) -> None:
    """A refusal has a reason."""
    assert str(error)
    assert good


@cache
def loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


_CUTS = (0, 0, 1, 1, 2, 3, 10, 60)

# Numbers and texts at usual limits.
EDGES = (
    *(b"0", b"-1", b"1e999", b"NaN", b"9" * 30, b"\x00", b"\x7f", b"\x80", b"\xff", b"\xc0\xaf", b"\xed\xa0\x80"),
    *("\u202e".encode(), "\U0001f4a9".encode(), b"\r\n", b"\n", b"\r", b"\t", b" ", b"%00", b"\\u0000", b"A" * 5_000),
)


@st.composite
def _spoiled(draw: st.DrawFn, seeds: Sequence[bytes], snippets: Sequence[bytes]) -> bytes:
    """A seed with one to eight changes: a stretch of it replaced by a piece, nothing, or a part of another seed."""
    text = draw(st.sampled_from(list(seeds)))
    pieces = st.sampled_from([b"", *snippets, *EDGES])
    for _ in range(draw(st.sampled_from((1, 1, 2, 2, 3, 5, 8)))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from(_CUTS)))
        piece = draw(pieces)
        if not draw(st.integers(0, 3)):
            other = draw(st.sampled_from([text, *seeds]))
            at = draw(st.integers(0, len(other)))
            piece = other[at : at + draw(st.sampled_from((1, 10, 100)))]
        text = text[:start] + piece + text[end:]
    return text


def inputs(seeds: Sequence[bytes], snippets: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Mutated seeds, and a few bytes and texts without a seed."""
    return st.one_of(_spoiled(seeds, snippets), st.binary(max_size=100), st.text(max_size=60).map(str.encode))
