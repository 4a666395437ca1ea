"""Messages in parts of HPwsn's family: wsnt:Package, and splitting.

A part has the Identification of its message, and a Fragment `f-m-p-i`: f is 1 for a part, m is 1 if more parts follow,
p is 1 if parts may be delivered alone, i counts from 0. An unsplit message is `0-0-p-0`.
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

MAX_PARTS = 100_000
"""Upper limit of part numbers."""

MAX_IDENTIFICATION = 200
"""Maximum length of an Identification, which is part of keys and headers."""

_FRAGMENT = re.compile(r"([01])-([01])-([01])-([0-9]{1,9})")


class Fragment(NamedTuple):
    """A parsed Fragment; `alone`: its parts may be delivered alone."""

    part: bool = False
    more: bool = False
    alone: bool = False
    number: int = 0

    def __str__(self) -> str:
        return f"{self.part:d}-{self.more:d}-{self.alone:d}-{self.number}"


def read_fragment(text: str) -> Fragment:
    """Parse a Fragment. Raises ValueError with the mistake."""
    fields = _FRAGMENT.fullmatch(text)
    if fields is None:
        raise ValueError(f"Fragment {text[:60]!r} is not of the form 0-0-1-0")
    part, more, alone = (field == "1" for field in fields.groups()[:3])
    read = Fragment(part, more, alone, int(fields[4]))
    if not part and (more or read.number):
        raise ValueError(f"Fragment {text}: an unsplit message has 0-0-0-0 or 0-0-1-0, a part begins with 1")
    if read.number >= MAX_PARTS:
        raise ValueError(f"Fragment {text}: the number of a part must be below {MAX_PARTS}")
    return read


PACKAGE_HEADER = "Arborcast-Package"
"""HTTP header of pushes with parts: `FRAGMENT;IDENTIFICATION` for each id, or `-` for a message that is not a part."""


def package_header(fragment: Fragment, identification: str) -> str:
    """The value of PACKAGE_HEADER for one message. The Identification is percent-encoded, since publishers choose
    it."""
    return f"{fragment};{quote(identification, safe=':')}" if fragment.part else "-"


def read_package_header(value: str) -> tuple[Fragment, str] | None:
    """The part in one value of PACKAGE_HEADER; None if it is not a part."""
    fragment, _, identification = value.strip().partition(";")
    try:
        read = read_fragment(fragment)
    except ValueError:
        return None
    return (read, unquote(identification)) if read.part else None


def write_package(fragment: Fragment, identification: str) -> str:
    """Fragment and Identification as the `package` of a notification."""
    return f"{fragment} {identification}" if identification else str(fragment)


def read_package(text: str) -> tuple[Fragment, str]:
    """Parse the text of `write_package`. Raises ValueError."""
    fragment, _, identification = text.partition(" ")
    return read_fragment(fragment), identification


class Piece(NamedTuple):
    """A part of an outgoing message. `text` is the pushed text: the content, or, if it may not be delivered alone, the
    message in the older format around it."""

    fragment: Fragment
    identification: str
    text: str


# Minimum number of content bytes in a part: each part is a push.
_MIN_CONTENT = 64

_MAX_OUTGOING_PARTS = 10_000


def split(content: str, topic: TopicPath, identification: str, limit: int, *, alone: bool) -> Iterator[Piece]:
    """The parts of a message with this content, each with its wrapper of at most `limit` bytes of UTF-8. Empty if the
    message need not be split. The content is cut between characters. Raises ValueError if `limit` is too small or
    yields too many parts."""
    written = content.encode()
    overhead = len(wrapped("", topic, identification, Fragment(True, True, alone, MAX_PARTS - 1)).encode())
    if len(written) + overhead <= limit:
        return
    room = limit - overhead
    if room < _MIN_CONTENT:
        raise ValueError(
            f"the wrapper of a part has {overhead} bytes, but a part may have only {limit}: at least "
            f"{overhead + _MIN_CONTENT} are required"
        )
    if len(written) > room * _MAX_OUTGOING_PARTS:
        raise ValueError(f"a message of {len(written)} bytes has more than {_MAX_OUTGOING_PARTS} parts of {limit}")
    begin = number = 0
    while begin < len(written):
        end = min(begin + room, len(written))
        while end < len(written) and written[end] & 0xC0 == 0x80:  # within a character
            end -= 1
        fragment = Fragment(True, end < len(written), alone, number)
        text = written[begin:end].decode()
        yield Piece(fragment, identification, text if alone else wrapped(text, topic, identification, fragment))
        begin, number = end, number + 1


def wrapped(content: str, topic: TopicPath, identification: str, fragment: Fragment) -> str:
    """The message in the older format around a part. The content of wsnt:Message may be an incomplete tag."""
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
    """Fragment, Identification and content of a message in the older format around a part; None for any other text. It
    is read by regular expressions, since it need not be well-formed XML."""
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


# Maximum number of characters before the content.
_HEAD = 8_192


def read_content(content: str) -> str:
    """Well-formed content as old receivers read it: references resolved, markup unchanged."""
    # XML normalises line ends to line feeds.
    return _REFERENCE.sub(_character, content.replace("\r\n", "\n").replace("\r", "\n"))


_REFERENCE = re.compile(r"&(?:#([0-9]{1,7})|#x([0-9A-Fa-f]{1,6})|(amp|lt|gt|quot|apos));")

_NAMED = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}


def _character(found: re.Match[str]) -> str:
    decimal, hexadecimal, name = found.groups()
    if name:
        return _NAMED[name]
    number = int(decimal) if decimal else int(hexadecimal, 16)
    return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else found[0]
