"""The parts of a multipart message. Pure.

Publishers send `topic, payload [, properties]`, properties as one JSON object of texts. A payload that is not one XML
element is sent as text. Topics have the form `a/b`, `{urn:t}a/b`, or, as in the older system, `a:b`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from arborcast.core.errors import PeerError, TopicError
from arborcast.topic_model.legacy_content import begins_element
from arborcast.topic_model.topics import MAX_DEPTH, ancestors, parse_path
from arborcast.wire.frames import LOOSE, PublishBody

Form = Literal["slash", "colon"]


class MessageError(PeerError):
    """A message of the wrong parts. `reason` is a word for counting."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def read_publication(parts: Sequence[bytes]) -> tuple[PublishBody, int]:
    """The frame, and its flags, that publishes a message of these parts. Raises MessageError."""
    if not 2 <= len(parts) <= 3:
        raise MessageError("parts", f"a message has topic, payload and perhaps properties, not {len(parts)} parts")
    properties: dict[str, str] = {}
    if len(parts) == 3 and parts[2]:
        try:
            properties = msgspec.json.decode(parts[2], type=dict[str, str])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MessageError("properties", f"properties are one JSON object of texts: {error!s:.200}") from error
    loose = 0 if begins_element(parts[1]) else LOOSE
    return PublishBody(read_topic(parts[0]), parts[1], properties), loose


def read_topic(part: bytes) -> str:
    """The topic as the gateway reads it. Raises MessageError."""
    try:
        text = part.decode().strip()
    except UnicodeDecodeError as error:
        raise MessageError("topic", f"a topic is text in UTF-8: {error}") from error
    if not text:
        raise MessageError("topic", "the first part, the topic, is empty")
    return text


def written_topic(path: str, form: Form) -> bytes:
    """The topic part of a message for receivers. Topics with a namespace have slashes in any case."""
    return (path.replace("/", ":") if form == "colon" and not path.startswith("{") else path).encode()


def expression_of(prefix: bytes) -> str:
    """The expression that selects all topics with this prefix: the subtree of its last whole step, or all topics
    without one."""
    try:
        text = prefix.decode()
    except UnicodeDecodeError:
        text = prefix.decode("utf-8", "ignore")  # a prefix may end within a character
    if not text.startswith("{"):
        text = text.replace(":", "/")
    namespace, brace, steps = text.rpartition("}")
    whole = steps.rpartition("/")[0]
    try:
        if not whole:
            return ""
        path = parse_path(f"{namespace}{brace}{whole}")
    except TopicError:
        return ""
    above = list(ancestors(path))
    # No topic is below the deepest level, and `//.` behind it is a step more than an expression may have.
    return f"{above[0] if len(above) + 1 == MAX_DEPTH else path}//."
