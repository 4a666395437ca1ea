"""An immutable map from strings to bytes in one buffer, read where it lies.

Opening it costs nothing, so it fits processes that need a few of a million entries, and a mapped file is shared by all
of them. Entries are sorted by hash; the leading bits of a hash say where in that order to look:

    header      entries, bits
    starts      2**bits + 1 of u32: where in the order the hashes with these leading bits begin
    hashes      one u32 per entry
    offsets     one u64 per entry and one more: where in the blob it begins
    blob        per entry: length of the key as u32, the key in UTF-8, the value

CRC-32 is the hash because the standard library computes it in 100 ns and everywhere alike (`hash` differs between
processes); keys are compared, so its collisions cost time only. A look-up is about a microsecond.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator
from itertools import accumulate

_HEADER = struct.Struct("=QQ")
_LENGTH = struct.Struct("=I")
_HASH_BITS = 32


def build_flat(items: Iterable[tuple[str, bytes]]) -> bytes:
    """The buffer of a FlatMap with these entries, no key twice. The same items in any order give the same bytes."""
    entries = sorted((zlib.crc32(encoded := key.encode()), encoded, value) for key, value in items)
    bits = max(0, len(entries).bit_length() - 1)  # one or two entries for each start
    counts = [0] * ((1 << bits) + 1)
    for hashed, _, _ in entries:
        counts[(hashed >> (_HASH_BITS - bits)) + 1] += 1
    lengths = [_LENGTH.size + len(key) + len(value) for _, key, value in entries]
    starts = array("I", accumulate(counts))
    hashes = array("I", [hashed for hashed, _, _ in entries])
    offsets = array("Q", accumulate(lengths, initial=0))
    parts = [_HEADER.pack(len(entries), bits), starts.tobytes(), hashes.tobytes(), offsets.tobytes()]
    for _, key, value in entries:
        parts += (_LENGTH.pack(len(key)), key, value)
    return b"".join(parts)


class FlatMap:
    """Reads what `build_flat` made. The values are slices of the buffer, which must not be closed before them."""

    def __init__(self, buffer: memoryview) -> None:
        count, bits = _HEADER.unpack_from(buffer)
        self._count: int = count
        self._shift = _HASH_BITS - bits
        starts = _HEADER.size
        hashes = starts + 4 * ((1 << bits) + 1)
        offsets = hashes + 4 * self._count
        blob = offsets + 8 * (self._count + 1)
        self._starts = buffer[starts:hashes].cast("I")
        self._hashes = buffer[hashes:offsets].cast("I")
        self._offsets = buffer[offsets:blob].cast("Q")
        self._blob = buffer[blob:]

    def __len__(self) -> int:
        return self._count

    def get(self, key: str) -> memoryview | None:
        """The value of this key."""
        encoded = key.encode()
        hashed = zlib.crc32(encoded)
        bucket = hashed >> self._shift
        for index in range(self._starts[bucket], self._starts[bucket + 1]):
            if self._hashes[index] == hashed:
                begin = self._offsets[index] + _LENGTH.size
                end = begin + len(encoded)
                if self._blob[begin:end] == encoded and self._key_length(index) == len(encoded):
                    return self._blob[end : self._offsets[index + 1]]
        return None

    def keys(self) -> Iterator[str]:
        """All keys."""
        for index in range(self._count):
            begin = self._offsets[index] + _LENGTH.size
            yield str(self._blob[begin : begin + self._key_length(index)], "utf-8")

    def _key_length(self, index: int) -> int:
        length: int = _LENGTH.unpack_from(self._blob, self._offsets[index])[0]
        return length
