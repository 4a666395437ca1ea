"""Parts of messages, as HPwsn's family cuts them, and the records of the log `fragments`.

A part says in wsnt:Package whose it is (Identification, the same for all parts of a message) and what it is: Fragment,
`f-m-p-i`. f is 1 for a part, m is 1 when more follow, p is 1 when parts may be delivered alone, i counts from 0. A
whole message is `0-0-p-0`.

    StoredPart    a part that waits for the others
    Assembled     all were there, and the message is in `notifications`
    GivenUp       not all came, or they make no message

One partition, so everybody who folds the log (`topic_model.projections.open_messages`) comes to the same result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import msgspec

from core.eventlog.versions import Versioned, VersionedCodec
from topic_model.topics import TopicPath

MOST_PARTS = 100_000
"""The number of a part is below this."""

MOST_IDENTIFICATION = 200
"""So many characters may an Identification have: it is part of keys and headers."""

VERSION = 1

_FRAGMENT = re.compile(r"([01])-([01])-([01])-([0-9]{1,9})")


class Fragment(NamedTuple):
    """What a message says of itself; `alone` says that its parts may be delivered alone."""

    part: bool = False
    more: bool = False
    alone: bool = False
    number: int = 0

    def __str__(self) -> str:
        return f"{self.part:d}-{self.more:d}-{self.alone:d}-{self.number}"


def read_fragment(text: str) -> Fragment:
    """What a Fragment says. Raises ValueError with what is wrong with it."""
    fields = _FRAGMENT.fullmatch(text)
    if fields is None:
        raise ValueError(f"Fragment {text[:60]!r} is not of the form 0-0-1-0")
    part, more, alone = (field == "1" for field in fields.groups()[:3])
    read = Fragment(part, more, alone, int(fields[4]))
    if not part and (more or read.number):
        raise ValueError(f"Fragment {text}: a whole message is 0-0-0-0 or 0-0-1-0, a part begins with 1")
    if read.number >= MOST_PARTS:
        raise ValueError(f"Fragment {text}: the number of a part is below {MOST_PARTS}")
    return read


def write_package(fragment: Fragment, identification: str) -> str:
    """Both in one text, as a notification carries them."""
    return f"{fragment} {identification}" if identification else str(fragment)


def read_package(text: str) -> tuple[Fragment, str]:
    """What `write_package` wrote. Raises ValueError."""
    fragment, _, identification = text.partition(" ")
    return read_fragment(fragment), identification


class StoredPart(msgspec.Struct, frozen=True, omit_defaults=True, tag="part"):
    """A part. `content` is what stood in wsnt:Message, in UTF-8, as it was written; `namespaces` are those in scope
    there, the default one under ""."""

    owner: str
    topic: TopicPath
    identification: str
    number: int
    last: bool
    content: bytes
    accepted_ms: int
    namespaces: dict[str, str] = {}
    traceparent: str = ""


class Assembled(msgspec.Struct, frozen=True, tag="assembled"):
    """The message whose first part in the log is at `first`, and whose last is at `at`, is in `notifications`."""

    owner: str
    topic: TopicPath
    identification: str
    first: int
    at: int


Reason = Literal["time", "size", "content", "lost"]
"""Why a message was given up: no part came for too long; it is too large; its parts make no message that is taken;
parts are not in the log any more."""


class GivenUp(msgspec.Struct, frozen=True, omit_defaults=True, tag="given-up"):
    """The message is given up, with the parts up to the offset `at`. `had` and `missing` are numbers of parts as
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


class _Value(Versioned, frozen=True):
    record: FragmentRecord


_codec = VersionedCodec(_Value, "a record of the parts of a message", VERSION)


def key_of(record: FragmentRecord) -> bytes:
    """The Kafka key: one for each message."""
    return "\n".join((record.owner, record.topic, record.identification)).encode()


def encode(record: FragmentRecord) -> tuple[bytes, bytes]:
    """Kafka key and value of a record."""
    return key_of(record), _codec.encode(_Value(VERSION, record))


def decode(_key: bytes, value: bytes | None) -> FragmentRecord:
    """The record behind a Kafka key and value.

    Raises RecordVersionError for a record of a newer version and InfrastructureError for one that cannot be read.
    """
    return _codec.decode(value).record


# Of the numbers in a text, which are for people: what is beyond is written as ….
_MOST_RANGES = 50


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in ascending order for people: `0-3 5 8-`, cut off where there are too many gaps."""
    written: list[str] = []
    for first, last in _runs(numbers):
        if len(written) == _MOST_RANGES:
            written.append("…")
            break
        written.append(str(first) if first == last else f"{first}-{last}")
    return " ".join(written)


def _runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    first = last = -2
    for number in numbers:
        if number != last + 1:
            if last >= 0:
                yield first, last
            first = number
        last = number
    if last >= 0:
        yield first, last
