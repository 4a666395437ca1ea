"""The snapshot of a routing table: one buffer, built once, opened in constant time, read in place.

header      magic, byte order, begin and length of each section
meta        name, sizes, the selectors with steps below an anchor (MessagePack; few)
shapes      number of a shape -> the shape (a flat map)
members     selector -> its active subscriptions (a flat map)
links       key -> the selectors linked to it (a flat map)
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from arborcast.core.errors import InfrastructureError
from arborcast.core.files import write_atomically
from arborcast.core.recent import Recent
from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.routing.members import Answer, answer_of
from arborcast.topic_model.routing.overlay import Checkpoint, SnapshotInput
from arborcast.topic_model.routing.rest import LinkTarget, RestIndex
from arborcast.topic_model.routing.selectors import compile_selector
from arborcast.topic_model.snapshot.packing import FlatMap, Packer, build_flat, decode_packed, decode_shape, unpack
from arborcast.topic_model.subscriptions import Subscription

_MAGIC = b"ArbSnap1"

_BYTE_ORDER = 0x01020304  # in native byte order: a reader with the other byte order reads another number

_HEADER = struct.Struct("=8sQ8Q")

_KEPT = 65_536  # shapes

_UNPACKED_BYTES = 32 * 1024 * 1024  # cached unpacked subscriptions, in each of two generations
_EACH = 500  # bytes of an unpacked subscription


class _Meta(msgspec.Struct, frozen=True):
    base: str
    subscriptions: int
    rest: dict[str, tuple[str, ...]]


_encoder = msgspec.msgpack.Encoder()

_meta_decoder = msgspec.msgpack.Decoder(_Meta)

_links_decoder = msgspec.msgpack.Decoder(tuple[tuple[str, tuple[str, ...]], ...])


class Snapshot:
    """The active subscriptions of a table at a checkpoint, by selector. Query it through a `SnapshotView`.

    Subscriptions are unpacked on the first request; some stay in memory. A snapshot opened from a file is mapped, with
    its pages shared by all processes. Pickles as its bytes.
    """

    def __init__(self, data: bytes | mmap.mmap) -> None:
        """Open a snapshot from its bytes. Raises InfrastructureError for an invalid one."""
        self._data = data
        meta, shapes, members, links = _sections(memoryview(data))
        self._meta = _meta_decoder.decode(meta)
        self._shapes = FlatMap(shapes)
        self._members = FlatMap(members)
        self._links = FlatMap(links)
        self._known_shapes: dict[int, Subscription] = {}
        self._unpacked: Recent[str, Answer] = Recent(_UNPACKED_BYTES, age_s=math.inf)
        self._rest: RestIndex | None = None

    @classmethod
    def build(cls, checkpoint: Checkpoint) -> Snapshot:
        """The snapshot of a checkpoint that was not taken yet. May run in another thread."""
        return cls(_build(checkpoint.take()))

    @classmethod
    def open(cls, file: Path) -> Snapshot:
        """Map the snapshot in a file, which may be removed, but not changed, while in use."""
        with file.open("rb") as stream:
            return cls(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))

    def write(self, file: Path) -> None:
        """Write the snapshot to a file, atomically."""
        write_atomically(file, self._data)

    @property
    def base(self) -> str:
        """The name of the checkpoint, also in its overlays."""
        return self._meta.base

    @property
    def size(self) -> int:
        return len(self._data)

    def members(self, selector: str) -> Answer:
        """The active subscriptions of a selector, in order."""
        known = self._unpacked.get(selector)
        if known is not None:
            return known
        packed = self._members.get(selector)
        if packed is None:
            return ()
        members = answer_of(tuple([unpack(each, self._shape(each.shape)) for each in decode_packed(packed)]))
        self._unpacked.put(selector, members, _EACH * len(members))
        return members

    def has(self, selector: str) -> bool:
        """Whether a selector has active subscriptions."""
        return self._members.get(selector) is not None

    def links(self, key: str) -> Iterator[LinkTarget]:
        """The selectors linked to a simple key."""
        found = self._links.get(key) if len(self._links) else None
        if found is not None:
            for selector, others in _links_decoder.decode(found):
                yield LinkTarget(selector, tuple(parse_normal(normal) for normal in others))

    def rest(self) -> RestIndex:
        """The selectors with steps below their anchor."""
        if self._rest is None:
            index = RestIndex()
            for selector, normals in self._meta.rest.items():
                definition = compile_selector(normals)
                for alternative in definition.rest_alternatives():
                    index.add(LinkTarget(selector, definition.others), alternative)
            self._rest = index
        return self._rest

    def __reduce__(self) -> tuple[Callable[[bytes], Snapshot], tuple[bytes]]:
        return Snapshot, (bytes(self._data),)

    def _shape(self, number: int) -> Subscription:
        shape = self._known_shapes.get(number)
        if shape is None:
            data = self._shapes.get(str(number))
            if data is None:
                raise InfrastructureError(f"the routing snapshot {self.base} is damaged, shape {number} is missing")
            if len(self._known_shapes) >= _KEPT:
                self._known_shapes.clear()
            shape = self._known_shapes[number] = decode_shape(data)
        return shape


def _build(frozen: SnapshotInput) -> bytes:
    packer = Packer()
    members = build_flat((selector, packer.pack(active)) for selector, active in frozen.active.items())
    links = build_flat(
        (
            key,
            _encoder.encode(
                [(target.selector, [other.normal for other in target.others]) for target in sorted(targets)]
            ),
        )
        for key, targets in frozen.links.items()
    )
    shapes = build_flat((str(number), shape) for number, shape in enumerate(packer.shapes()))
    subscriptions = sum(map(len, frozen.active.values()))
    meta = _encoder.encode(_Meta(frozen.base, subscriptions, frozen.rest))
    sections = (meta, shapes, members, links)
    bounds: list[int] = []
    parts = [b""]
    at = _HEADER.size
    for section in sections:
        bounds += (at, len(section))
        padding = -len(section) % 8  # numbers in flat maps are aligned to their size
        parts += (section, b"\0" * padding)
        at += len(section) + padding
    parts[0] = _HEADER.pack(_MAGIC, _BYTE_ORDER, *bounds)
    return b"".join(parts)


def _sections(view: memoryview) -> list[memoryview]:
    if len(view) < _HEADER.size or view[: len(_MAGIC)] != _MAGIC:
        raise InfrastructureError("this is not a routing snapshot of this version: build it again")
    _, byte_order, *bounds = _HEADER.unpack_from(view)
    if byte_order != _BYTE_ORDER:
        raise InfrastructureError("the routing snapshot was built on a machine of another byte order: build it here")
    if len(view) < bounds[-2] + bounds[-1]:
        raise InfrastructureError(
            f"the routing snapshot ends after {len(view)} of {bounds[-2] + bounds[-1]} bytes: copy or build it again"
        )
    return [view[begin : begin + length] for begin, length in zip(bounds[::2], bounds[1::2], strict=True)]
