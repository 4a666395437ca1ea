"""Compact encoding of subscriptions: common parts are stored once, as a *shape*, and referenced by number.

A shape is a subscription without its individual parts: id, consumer, times, owner, texts. A million subscriptions of a
few kinds of clients have a few shapes and take half of the bytes.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Iterable
from itertools import accumulate

import msgspec

from arborcast.topic_model.subscriptions import (
    BoundEndpoint,
    EndpointReference,
    Peer,
    Protection,
    Subscription,
    TopicFilter,
    Trigger,
    XPathFilter,
)

_HEADER = struct.Struct("=QQ")

_LENGTH = struct.Struct("=I")

_HASH_BITS = 32


def build_flat(items: Iterable[tuple[str, bytes]]) -> bytes:
    """The buffer of a FlatMap with these entries and unique keys. The same items in any order give the same bytes."""
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
    """An immutable map from strings to bytes in a buffer of `build_flat`, read in place.

    Opening it takes constant time, for processes that need a few of a million entries, and processes share a mapped
    file. Entries are sorted by hash; the leading bits of a hash select a range of entries:

        header      entries, bits
        starts      2**bits + 1 of u32: the first entry with these leading bits
        hashes      one u32 per entry
        offsets     one u64 per entry and one more: its position in the blob
        blob        per entry: length of the key as u32, the key in UTF-8, the value

    The hash is CRC-32, which the standard library computes in 100 ns, with the same result in all processes (unlike
    `hash`). Keys are compared, so collisions cost time only. A look-up takes about a microsecond. The values are slices
    of the buffer, which must not be closed before them.
    """

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
        encoded = key.encode()
        hashed = zlib.crc32(encoded)
        bucket = hashed >> self._shift
        for index in range(self._starts[bucket], self._starts[bucket + 1]):
            if self._hashes[index] == hashed:
                written, start = _LENGTH.pack(len(encoded)) + encoded, self._offsets[index]
                end = start + len(written)
                if self._blob[start:end] == written:
                    return self._blob[end : self._offsets[index + 1]]
        return None


class _Packed(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    shape: int
    id: str
    consumer: str
    created_ms: int
    texts: tuple[str, ...] = ()  # for each topic filter its text, and its normal form if different
    terminates_ms: int | None = None
    owner: str = ""
    address: str | None = None  # None: the shape's, with the id appended
    parameters: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()
    content: tuple[XPathFilter, ...] = ()
    producer: tuple[XPathFilter, ...] = ()
    pull_point: str = ""
    protection: Protection | None = None
    endpoint: BoundEndpoint | None = None
    types: tuple[str, ...] = ()
    trigger: Trigger | None = None
    peer: Peer | None = None


_encoder = msgspec.msgpack.Encoder()

decode_packed = msgspec.msgpack.Decoder(tuple[_Packed, ...]).decode
"""The result of `Packer.pack`, for `unpack`."""

decode_shape = msgspec.msgpack.Decoder(Subscription).decode
"""A shape of `Packer.shapes`."""

# In a shape: the normal form is equal to the text.
_SAME = "="


class Packer:
    """Packs members, and collects their shapes."""

    def __init__(self) -> None:
        self._shapes: dict[bytes, int] = {}

    def pack(self, members: Iterable[Subscription]) -> bytes:
        """These subscriptions, in this order."""
        return _encoder.encode([self._packed(member) for member in members])

    def shapes(self) -> list[bytes]:
        """The shapes of all packed subscriptions."""
        return list(self._shapes)

    def _packed(self, member: Subscription) -> _Packed:
        ends_in_id = member.address.endswith(member.id)
        texts: list[str] = []
        topics = []
        for topic in member.topics:
            texts.append(topic.text)
            same = topic.normal == topic.text
            if not same:
                texts.append(topic.normal)
            topics.append(TopicFilter(topic.dialect, "", _SAME if same else "", topic.namespaces))
        shape = Subscription(
            "",
            EndpointReference(""),
            member.address[: len(member.address) - len(member.id)] if ends_in_id else "",
            topics=tuple(topics),
            form=member.form,
            soap=member.soap,
            addressing=member.addressing,
            policy=member.policy,
            paused=member.paused,
            queue=member.queue,
        )
        number = self._shapes.setdefault(_encoder.encode(shape), len(self._shapes))
        return _Packed(
            number,
            member.id,
            member.consumer.address,
            member.created_ms,
            tuple(texts),
            member.terminates_ms,
            member.owner,
            None if ends_in_id else member.address,
            member.consumer.reference_parameters,
            member.consumer.metadata,
            member.content,
            member.producer,
            member.pull_point,
            member.protection,
            member.endpoint,
            member.types,
            member.trigger,
            member.peer,
        )


def unpack(packed: _Packed, shape: Subscription) -> Subscription:
    """The subscription of this shape."""
    texts = iter(packed.texts)
    topics = []
    for topic in shape.topics:
        text = next(texts)
        normal = text if topic.normal == _SAME else next(texts)
        topics.append(TopicFilter(topic.dialect, text, normal, topic.namespaces))
    return Subscription(
        packed.id,
        EndpointReference(packed.consumer, packed.parameters, packed.metadata),
        shape.address + packed.id if packed.address is None else packed.address,
        tuple(topics),
        packed.content,
        packed.producer,
        shape.form,
        shape.soap,
        shape.addressing,
        shape.policy,
        packed.created_ms,
        packed.terminates_ms,
        shape.paused,
        packed.owner,
        packed.pull_point,
        packed.protection,
        packed.endpoint,
        packed.types,
        packed.trigger,
        shape.queue,
        packed.peer,
    )
