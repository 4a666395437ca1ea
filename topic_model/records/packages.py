"""Messages in parts, as HPwsn's family cuts them: what wsnt:Package says, and cutting.

A part says whose it is (Identification, the same for all parts of a message) and what it is: Fragment, `f-m-p-i`. Here
f is 1 for a part, m is 1 when more follow, p is 1 when parts may be delivered alone, i counts from 0. A whole message
is `0-0-p-0`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape, unescape

from arborcast.topic_model.expressions.dialects import SIMPLE
from arborcast.topic_model.namespaces import WSNT
from arborcast.topic_model.topics import TopicPath

MOST_PARTS = 100_000
"""The number of a part is below this."""

MOST_IDENTIFICATION = 200
"""So many characters may an Identification have: it is part of keys and headers."""

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


PACKAGE_HEADER = "Arborcast-Package"
"""HTTP header of pushes that carry parts: for each of the ids `FRAGMENT;IDENTIFICATION`, or `-` for what is none."""


def package_header(fragment: Fragment, identification: str) -> str:
    """Its value for one message. The Identification is percent-encoded: others write what they like there."""
    return f"{fragment};{quote(identification, safe=':')}" if fragment.part else "-"


def read_package_header(value: str) -> tuple[Fragment, str] | None:
    """The part that one of its values names; None for none."""
    fragment, _, identification = value.strip().partition(";")
    try:
        read = read_fragment(fragment)
    except ValueError:
        return None
    return (read, unquote(identification)) if read.part else None


def write_package(fragment: Fragment, identification: str) -> str:
    """Both in one text, as a notification carries them."""
    return f"{fragment} {identification}" if identification else str(fragment)


def read_package(text: str) -> tuple[Fragment, str]:
    """What `write_package` wrote. Raises ValueError."""
    fragment, _, identification = text.partition(" ")
    return read_fragment(fragment), identification


class Piece(NamedTuple):
    """A part of a message that leaves. `text` is what its receiver is to read: the content, or, when it may not be
    delivered alone, the message of the older form around it, which says what it is a part of."""

    fragment: Fragment
    identification: str
    text: str


# Of a limit so many bytes have to be left for content: each part is a push of its own.
_LEAST_ROOM = 64

_MOST_LEAVING = 10_000


def split(content: str, topic: TopicPath, identification: str, limit: int, *, alone: bool) -> Iterator[Piece]:
    """The message with this content in parts, each, with the wrapper around it, of at most `limit` bytes in UTF-8. None
    when it fits whole. The content is cut between characters.

    Raises ValueError when the wrapper leaves too little room, or there would be too many parts.
    """
    written = content.encode()
    around = len(wrapped("", topic, identification, Fragment(True, True, alone, MOST_PARTS - 1)).encode())
    if len(written) + around <= limit:
        return
    room = limit - around
    if room < _LEAST_ROOM:
        raise ValueError(
            f"the wrapper of a part has {around} bytes, and a part may have {limit}: at least {around + _LEAST_ROOM} "
            "are needed"
        )
    if len(written) > room * _MOST_LEAVING:
        raise ValueError(f"a message of {len(written)} bytes has more than {_MOST_LEAVING} parts of {limit}")
    begin = number = 0
    while begin < len(written):
        end = min(begin + room, len(written))
        while end < len(written) and written[end] & 0xC0 == 0x80:  # in the middle of a character
            end -= 1
        fragment = Fragment(True, end < len(written), alone, number)
        text = written[begin:end].decode()
        yield Piece(fragment, identification, text if alone else wrapped(text, topic, identification, fragment))
        begin, number = end, number + 1


def wrapped(content: str, topic: TopicPath, identification: str, fragment: Fragment) -> str:
    """The message of the older form around a part. What is inside wsnt:Message is as it is: half a tag, perhaps."""
    named = topic if topic.startswith("{") else topic.replace("/", ":")
    return (
        f'<wsnt:NotificationMessage xmlns:wsnt="{WSNT}"><wsnt:Topic Dialect="{SIMPLE}">{escape(named)}</wsnt:Topic>'
        f"<wsnt:Package><Identification>{escape(identification)}</Identification><Fragment>{fragment}</Fragment>"
        f"</wsnt:Package><wsnt:Message>{content}</wsnt:Message></wsnt:NotificationMessage>"
    )


_MESSAGE = re.compile(r"<((?:[^\s<>/:!?]+:)?Message)(?:\s[^<>]*)?>")

_UNWRAPPED = re.compile(
    r"<Identification>([^<>]{1,1000})</Identification>\s*+<Fragment>\s*+([01]-[01]-[01]-[0-9]{1,5})\s*+</Fragment>"
)


def unwrap_part(text: str) -> tuple[Fragment, str, str] | None:
    """The part in a text that is a message of the older form around one: its Fragment, Identification and content; None
    for any other text. It is no XML, so it is not parsed."""
    if not text.startswith("<") or "NotificationMessage" not in text[:_HEAD]:
        return None
    start = _MESSAGE.search(text, 0, _HEAD)
    package = None if start is None else _UNWRAPPED.search(text, 0, start.start())
    end = -1 if start is None else text.rfind(f"</{start[1]}", start.end())
    if start is None or package is None or end < 0:
        return None
    try:
        fragment = read_fragment(package[2])
    except ValueError:
        return None
    return (fragment, unescape(package[1]), text[start.end() : end]) if fragment.part else None


# What stands before the content is within so many characters.
_HEAD = 8_192


def read_content(content: str) -> str:
    """What old receivers see of well-formed content: its text after one reading, in which markup stays and references
    are what they stand for."""
    # Of the ends of lines XML leaves line feeds.
    return _REFERENCE.sub(_character, content.replace("\r\n", "\n").replace("\r", "\n"))


_REFERENCE = re.compile(r"&(?:#([0-9]{1,7})|#x([0-9A-Fa-f]{1,6})|(amp|lt|gt|quot|apos));")

_NAMED = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}


def _character(found: re.Match[str]) -> str:
    decimal, hexadecimal, name = found.groups()
    if name:
        return _NAMED[name]
    number = int(decimal) if decimal else int(hexadecimal, 16)
    return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else found[0]
