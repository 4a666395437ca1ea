"""Records of the log `fragments`: parts of messages, and the results of their assembly.

    StoredPart    a part that waits for the others
    Assembled     the complete message is in `notifications`
    GivenUp       parts are missing, or the assembled message is invalid

One partition, so every fold of the log (`topic_model.projections.open_messages`) has the same result.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Literal

import msgspec

from arborcast.core.versions import RecordCodec
from arborcast.topic_model.topics import TopicPath

VERSION = 1


class StoredPart(msgspec.Struct, frozen=True, omit_defaults=True, tag="part"):
    """A part. `content` is the unchanged content of wsnt:Message in UTF-8; `namespaces` are in scope there, the default
    one under "", only of the first part. `as_text`: the message arrived as text, not as XML."""

    owner: str
    topic: TopicPath
    identification: str
    number: int
    last: bool
    content: bytes
    accepted_ms: int
    namespaces: dict[str, str] = {}
    traceparent: str = ""
    as_text: bool = False


class Assembled(msgspec.Struct, frozen=True, tag="assembled"):
    """The message whose first part is at the offset `first`, and whose last is at `at`, is in `notifications`."""

    owner: str
    topic: TopicPath
    identification: str
    first: int
    at: int


Reason = Literal["time", "size", "content", "lost"]
"""Why a message was given up: timeout; size; invalid assembled content; parts no longer in the log."""


class GivenUp(msgspec.Struct, frozen=True, omit_defaults=True, tag="given-up"):
    """The message was given up, with the parts up to the offset `at`. `had` and `missing` are numbers of parts as
    `ranges` writes them."""

    owner: str
    topic: TopicPath
    identification: str
    first: int
    at: int
    reason: Reason
    since_ms: int
    at_ms: int
    had: str = ""
    missing: str = ""
    bytes: int = 0
    detail: str = ""


FragmentRecord = StoredPart | Assembled | GivenUp


_codec = RecordCodec[FragmentRecord](FragmentRecord, "a record of the parts of a message", VERSION)


def key_of(record: FragmentRecord) -> bytes:
    """The Kafka key, one per message."""
    return "\n".join((record.owner, record.topic, record.identification)).encode()


def encode(record: FragmentRecord) -> tuple[bytes, bytes]:
    """Kafka key and value of a record."""
    return key_of(record), _codec.encode(record)


def decode(_key: bytes, value: bytes | None) -> FragmentRecord:
    """The record of a Kafka key and value. Raises RecordVersionError for a newer version and InfrastructureError for an
    unreadable record."""
    return _codec.decode(value)


# Maximum number of ranges in a message; others become ….
_MAX_RANGES = 50


def ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers as text for messages: `0-3 5 8`, shortened after many gaps."""
    written: list[str] = []
    for _, together in groupby(enumerate(numbers), lambda each: each[1] - each[0]):
        if len(written) == _MAX_RANGES:
            written.append("…")
            break
        run = [number for _, number in together]
        written.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return " ".join(written)
