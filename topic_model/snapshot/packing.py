"""Subscriptions as few bytes: what many have in common is kept once, as a *shape*, and referred to by number.

A shape is a subscription with everything blank that is particular: id, consumer, times, owner, texts. A million
subscriptions of a few kinds of clients have a few shapes, and take half of the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from topic_model.subscriptions import EndpointReference, Protection, Subscription, TopicFilter, XPathFilter


class _Packed(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    shape: int
    id: str
    consumer: str
    created_ms: int
    texts: tuple[str, ...] = ()  # per topic filter the text, and the normal form where that is another
    terminates_ms: int | None = None
    owner: str = ""
    address: str | None = None  # where it is not the shape's with the id behind it
    parameters: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()
    content: tuple[XPathFilter, ...] = ()
    producer: tuple[XPathFilter, ...] = ()
    pull_point: str = ""
    protection: Protection | None = None


_encoder = msgspec.msgpack.Encoder()
_packed_decoder = msgspec.msgpack.Decoder(tuple[_Packed, ...])
_shape_decoder = msgspec.msgpack.Decoder(Subscription)

# In a shape: the normal form is the text itself.
_SAME = "="


class Packer:
    """Packs members, and collects their shapes."""

    def __init__(self) -> None:
        self._shapes: dict[bytes, int] = {}

    def pack(self, members: Iterable[Subscription]) -> bytes:
        """These subscriptions, in this order."""
        return _encoder.encode([self._packed(member) for member in members])

    def shapes(self) -> list[bytes]:
        """The shapes of all that was packed so far."""
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
        )


def decode_shape(data: bytes | memoryview) -> Subscription:
    """A shape that `Packer.shapes` returned."""
    return _shape_decoder.decode(data)


def decode_packed(data: bytes | memoryview) -> tuple[_Packed, ...]:
    """What `Packer.pack` returned, one step before `unpack`."""
    return _packed_decoder.decode(data)


def unpack(packed: _Packed, shape: Subscription) -> Subscription:
    """The subscription that was packed with this shape."""
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
    )
