"""Inputs made from good ones: pieces cut out, put in, doubled, taken from another. One way of doing it, two sources of
chance: hypothesis, which makes a failure small, and a numbered generator, which makes a million of them in minutes."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import strategies as st

_CUTS = (0, 0, 1, 1, 2, 3, 10, 60)

# Numbers and texts at which something usually ends.
EDGES = (
    *(b"0", b"-1", b"1e999", b"NaN", b"9" * 30, b"\x00", b"\x7f", b"\x80", b"\xff", b"\xc0\xaf", b"\xed\xa0\x80"),
    *("\u202e".encode(), "\U0001f4a9".encode(), b"\r\n", b"\n", b"\r", b"\t", b" ", b"%00", b"\\u0000", b"A" * 5_000),
)


@st.composite
def spoiled(draw: st.DrawFn, seeds: Sequence[bytes], snippets: Sequence[bytes]) -> bytes:
    """A seed with one to four changes."""
    text = draw(st.sampled_from(list(seeds)))
    pieces = [b"", *snippets, *EDGES]
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from(_CUTS)))
        text = text[:start] + draw(st.sampled_from(pieces)) + text[end:]
    return text


class Generator:
    """The inputs of a target by number: input n of a seed is the same on every machine."""

    def __init__(self, seeds: Sequence[bytes], snippets: Sequence[bytes], seed: int) -> None:
        self._seeds = list(seeds)
        self._pieces = [*snippets, *EDGES]
        self._seed = seed

    def make(self, number: int) -> bytes:
        """Input number `number`."""
        chance = random.Random(f"{self._seed}/{number}")
        text = chance.choice(self._seeds)
        for _ in range(chance.choice((1, 1, 2, 2, 3, 5, 8))):
            text = self._changed(chance, text)
        return text

    def _changed(self, chance: random.Random, text: bytes) -> bytes:
        start = chance.randint(0, len(text))
        end = min(len(text), start + chance.choice(_CUTS))
        match chance.randrange(6):
            case 0 | 1:
                return text[:start] + chance.choice(self._pieces) + text[end:]
            case 2:
                return text[:start] + text[end:]
            case 3:  # again, at another place
                at = chance.randint(0, len(text))
                return text[:at] + text[start : min(len(text), start + chance.choice((1, 10, 100)))] + text[at:]
            case 4:
                other = chance.choice(self._seeds)
                cut = chance.randint(0, len(other))
                return text[:start] + other[cut : cut + chance.choice((1, 10, 100))] + text[end:]
            case _:
                return text[:start] + bytes([chance.randrange(256)]) + text[min(len(text), start + 1) :]
