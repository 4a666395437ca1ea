"""Delivery options of a publisher for its messages:

    <p:Publication xmlns:p="urn:arborcast:policy" Messages="1 3" ValidUntil="2026-01-31T12:00:00Z" Lifespan="PT2S"
        Type="{urn:plant}reading" Priority="5" Reliable="true"/>

behind the messages of a wsnt:Notify (the schema has no place for it inside one), or as a header block of SOAP. Without
`Messages` it applies to all of them, as do the headers of POST /publish with the same options.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from lxml import etree

from arborcast.topic_model.message_types import read_type
from arborcast.topic_model.namespaces import SOAP11, SOAP12
from arborcast.topic_model.records.notifications import MAX_PRIORITY, Notification
from arborcast.wire import limits, times
from arborcast.wire.envelope import PUBLICATION, Request, is_for_us
from arborcast.wire.errors import InvalidRequest

VALID_UNTIL, LIFESPAN, TYPE, PRIORITY, RELIABLE = "ValidUntil", "Lifespan", "Type", "Priority", "Reliable"

MERGE = "Merge"
"""Only of requests: those that are named otherwise are not equal."""

_MESSAGES = "Messages"

_ATTRIBUTES = frozenset({_MESSAGES, VALID_UNTIL, LIFESPAN, TYPE, PRIORITY, RELIABLE, MERGE})

# As xsd:boolean is written.
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}

# The end of the year 9999.
_LAST_MS = 253_402_300_799_999

# Attributes of header blocks from SOAP and WS-Security.
_AROUND = (
    f"{{{SOAP11}}}",
    f"{{{SOAP12}}}",
    "{http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-utility-1.0.xsd}",
)

# No number here has more digits.
_DIGITS = 9

_priority = re.compile("[+-]?[0-9]{1,3}")


class Publication(NamedTuple):
    """The attributes of a publication; 0, empty and None for missing ones."""

    valid_until_ms: int = 0
    lifespan_ms: int = 0
    type: str = ""
    priority: int | None = None
    reliable: bool = False
    merge: str = ""

    def until_ms(self, accepted_ms: int) -> int:
        """Until when a message is valid that is accepted then; 0 when it has no end."""
        if not self.lifespan_ms:
            return self.valid_until_ms
        ends = accepted_ms + self.lifespan_ms
        return min(ends, self.valid_until_ms) if self.valid_until_ms else ends


NO_ATTRIBUTES = Publication()


def by_id(
    notifications: Sequence[Notification], publications: Mapping[int, Publication], messages: int
) -> Mapping[str, Publication]:
    """The options of messages by the ids of their notifications. One message may have several notifications."""
    numbers = range(1, messages + 1) if messages == len(notifications) else [1] * len(notifications)
    return {
        each.id: publications[number]
        for number, each in zip(numbers, notifications, strict=True)
        if number in publications
    }


def of_request(request: Request, messages: int) -> Mapping[int, Publication]:
    """The options in a request with a Notify, by the number of the message, from 1. Raises InvalidRequest."""
    elements = _in_header(request)
    if len(request.operation) > messages:  # it has more children than its messages
        elements = [*request.operation.iterchildren(PUBLICATION), *elements]
    found: dict[int, Publication] = {}
    for element in elements:
        publication = _read(element)
        for number in _numbers(element.get(_MESSAGES), messages):
            if number in found:
                raise InvalidRequest(f"two p:Publication apply to message {number}: each message has one at most")
            found[number] = publication
    return found


def read_attributes(texts: Mapping[str, str], namespaces: Mapping[str | None, str], where: str) -> Publication:
    """The options in attributes, or in the corresponding headers. `where` is the beginning of error messages.

    Raises InvalidRequest.
    """
    return Publication(
        _time_ms(texts[VALID_UNTIL], where) if VALID_UNTIL in texts else 0,
        duration_ms(texts[LIFESPAN], f"{where}: Lifespan") if LIFESPAN in texts else 0,
        _type(texts[TYPE], namespaces, where) if TYPE in texts else "",
        priority_of(texts[PRIORITY], where) if PRIORITY in texts else None,
        _boolean(texts[RELIABLE], where) if RELIABLE in texts else False,
        _merge(texts.get(MERGE, ""), where),
    )


def priority_of(text: str, where: str) -> int:
    """A priority. `where` begins the sentence when it cannot be read. Raises InvalidRequest."""
    digits = text.strip()
    number = int(digits) if _priority.fullmatch(digits) else MAX_PRIORITY + 1
    if abs(number) > MAX_PRIORITY:
        raise InvalidRequest(
            f"{where}: Priority is a whole number from {-MAX_PRIORITY} to {MAX_PRIORITY}, not {text:.100}"
        )
    return number


def is_number(text: str, least: int, most: int) -> bool:
    """Whether it is a number from `least` to `most`, which has few digits."""
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS and least <= int(text) <= most


def duration_ms(
    text: str, where: str, least_ms: int = 1, most: tuple[int, str] = (limits.LIFESPAN_MS, "a year")
) -> int:
    """A duration in milliseconds; a positive one is at least one. `where` begins the error message for an invalid one,
    one that is too short, or longer than the `most`, in milliseconds and in words. Raises InvalidRequest."""
    try:
        seconds = times.duration_s(text, datetime.now(UTC))
    except ValueError as error:
        raise InvalidRequest(f"{where}: {error}") from error
    found_ms = max(1, int(seconds * 1000)) if seconds > 0 else 0
    if not least_ms <= found_ms <= most[0] or text.strip().startswith("-"):
        least = {0: "not negative", 1: "more than nothing"}.get(least_ms, f"at least {least_ms} ms")
        raise InvalidRequest(f"{where} is {least} and at most {most[1]}, not {text:.100}")
    return found_ms


def checked_key(key: str) -> str:
    """The key that identifies repetitions of a publication. Raises InvalidRequest."""
    if not (key.isascii() and (key.isprintable() or not key)) or len(key) > limits.KEY:
        raise InvalidRequest(f"an Idempotency-Key is up to {limits.KEY} printable characters of ASCII")
    return key


def publication_with(
    valid_until_ms: int, lifespan_s: float, kind: str, priority: int | None, reliable: bool
) -> Publication:
    """The same options as numbers; 0, empty or None if missing. Raises InvalidRequest."""
    if priority is not None and abs(priority) > MAX_PRIORITY:
        raise InvalidRequest(f"priority is from {-MAX_PRIORITY} to {MAX_PRIORITY}, not {priority}")
    if not 0 <= valid_until_ms <= _LAST_MS:
        raise InvalidRequest(f"valid_until is in milliseconds since 1970, not {valid_until_ms}")
    if not 0 <= lifespan_s <= limits.LIFESPAN_MS / 1000:
        raise InvalidRequest(f"lifespan is more than nothing and at most a year, in seconds, not {lifespan_s}")
    lifespan_ms = max(1, int(lifespan_s * 1000)) if lifespan_s else 0
    return Publication(valid_until_ms, lifespan_ms, _type(kind, {}, "a PUBLISH") if kind else "", priority, reliable)


def _in_header(request: Request) -> list[etree._Element]:
    # A header is the first child; another could only be the body (`envelope.parse`).
    first = request.root[0]
    if first is request.operation.getparent() or not len(first):
        return []
    envelope = SOAP11 if request.soap == "1.1" else SOAP12
    return [block for block in first.iterchildren(PUBLICATION) if is_for_us(block, envelope)]


def _read(element: etree._Element) -> Publication:
    attributes = {str(name): str(text) for name, text in element.attrib.items() if not str(name).startswith(_AROUND)}
    unknown = sorted(set(attributes) - _ATTRIBUTES)
    if unknown:
        raise InvalidRequest(f"p:Publication has {', '.join(sorted(_ATTRIBUTES))}, no {unknown[0]:.100}")
    if len(element) or (element.text or "").strip():
        raise InvalidRequest("p:Publication has attributes and nothing inside")
    return read_attributes(attributes, element.nsmap, "p:Publication")


def _numbers(text: str | None, messages: int) -> Iterator[int]:
    if text is None:
        yield from range(1, messages + 1)
        return
    words = text.split()
    if not words:
        raise InvalidRequest("p:Publication: Messages names no message; without it all are meant")
    for word in words:
        if not is_number(word, 1, messages):
            raise InvalidRequest(
                f"p:Publication: Messages has numbers from 1 to {messages}, as many as there are messages, "
                f"not {word:.100}"
            )
        yield int(word)


def _time_ms(text: str, where: str) -> int:
    try:
        moment = times.date_time(text)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"{where}: ValidUntil is a time such as 2030-01-31T12:00:00Z, not {text.strip():.60} ({error})"
        ) from error
    # 0 means no end, so a time before the epoch becomes 1.
    return 0 if moment is None else max(1, times.to_ms(moment))


def _boolean(text: str, where: str) -> bool:
    found = _BOOLEANS.get(text.strip())
    if found is None:
        raise InvalidRequest(f"{where}: Reliable is true or false, not {text.strip():.60}")
    return found


def _merge(text: str, where: str) -> str:
    if len(text) > limits.MERGE:
        raise InvalidRequest(f"{where}: Merge has {limits.MERGE} characters at most, this one {len(text)}")
    return text


def _type(text: str, namespaces: Mapping[str | None, str], where: str) -> str:
    try:
        return read_type(text.strip(), namespaces)
    except ValueError as error:
        raise InvalidRequest(f"{where}: Type: {error}") from error
