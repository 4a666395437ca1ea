"""CloudEvents 1.0: a notification as an event, and the three content modes of the HTTP binding. Pure.

    id       the id of the notification; the same for each attempt and each replay
    source   the public address of the engine
    type     the type that the event was published with, else the type of the message, else DEFAULT_TYPE
    subject  the path of the topic
    time     the time of acceptance

Attributes of a published event are stored as properties of its notification, with the prefix PROPERTY in their names.
Attributes outside this list (`dataschema`, `sequence`, and other extensions) are also attributes of the pushed event.
Data is the payload as XML. Loose content without elements (`topic_model.legacy_content`) is JSON if it parses as JSON,
else text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

import msgspec

from arborcast.topic_model import legacy_content
from arborcast.topic_model.message_types import root_type
from arborcast.topic_model.namespaces import ARBORCAST_POLICY

if TYPE_CHECKING:
    from lxml import etree

VERSION = "1.0"

EVENT: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
"""Media types of an event in JSON, and of a list of events."""

DEFAULT_TYPE = "arborcast.notification"
"""The type of an event whose message has none: text or JSON published without a type."""

HEADER = "ce-"
"""The prefix of an attribute's header in binary mode."""

PROPERTY = "ce-"

NAME = re.compile(r"(?!data\Z)[a-z0-9]{1,100}", re.ASCII)
"""The name of an attribute. In JSON, `data` is the member with the data."""

# Attributes that are set from the notification; the publisher's values are not pushed.
_OURS = frozenset({"specversion", "id", "source", "type", "subject", "time", "datacontenttype"})

_XML, _JSON, _TEXT = "application/xml", "application/json", "text/plain; charset=utf-8"

# HTTP binding, 3.1.3.2: characters that are not escaped in a header.
_PLAIN = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


NOTHING_PUBLISHED: Mapping[str, str] = {}


class Event(NamedTuple):
    """One event; `media` is the type of its data."""

    attributes: Mapping[str, str]
    media: str
    data: bytes


def event_of(
    identifier: str,
    topic: str,
    payload: bytes,
    accepted_ms: int,
    source: str,
    kind: str = "",
    published: Mapping[str, str] = NOTHING_PUBLISHED,
) -> Event:
    """The event of a notification. `kind` is the stored type, empty for the type of the payload's element; `published`
    has the attributes of the published event."""
    media, data = _data(payload, published.get("datacontenttype", ""))
    if kind in ("", legacy_content.TYPE):
        kind = "" if media != _XML else root_type(payload)
    at = datetime.fromtimestamp(accepted_ms / 1000, UTC).isoformat(timespec="milliseconds")
    attributes = {
        "specversion": VERSION,
        "id": identifier,
        "source": source,
        "type": published.get("type") or kind or DEFAULT_TYPE,
        "subject": topic,
        "time": at.replace("+00:00", "Z"),
        **{name: value for name, value in published.items() if name not in _OURS},
    }
    return Event(attributes, media, data)


def structured(event: Event) -> bytes:
    """One event in JSON."""
    attributes = msgspec.json.encode({**event.attributes, "datacontenttype": event.media})
    data = event.data if event.media == _JSON else msgspec.json.encode(event.data.decode())
    return attributes[:-1] + b',"data":' + data + b"}"


def pushed(form: str, events: Sequence[Event]) -> tuple[tuple[tuple[str, str], ...], bytes]:
    """The headers and the body of a push in one of the three formats; only a batch has several events."""
    first = events[0]
    if form == "cloudevents-binary":
        named = [(HEADER + name, quote(value, safe=_PLAIN)) for name, value in first.attributes.items()]
        return (("Content-Type", first.media), *named), first.data
    if form == "cloudevents-structured":
        return (("Content-Type", f"{EVENT}; charset=utf-8"),), structured(first)
    return (("Content-Type", f"{BATCH}; charset=utf-8"),), b"[" + b",".join(map(structured, events)) + b"]"


def published_in(producer: bytes) -> Mapping[str, str]:
    """The attributes of the published event, from the wsnt:ProducerReference of its notification; empty for a
    notification that was not published as an event."""
    if b'"' + PROPERTY.encode() not in producer:
        return NOTHING_PUBLISHED
    properties = _parsed(producer).iter(f"{{{ARBORCAST_POLICY}}}Property")
    return published_with({each.get("Name", ""): each.text or "" for each in properties})


def published_with(properties: Mapping[str, str]) -> Mapping[str, str]:
    """As `published_in`, from the properties of the notification."""
    named = {name.removeprefix(PROPERTY): text for name, text in properties.items() if name.startswith(PROPERTY)}
    # SOAP clients may write properties of any name.
    return {name: text for name, text in named.items() if text and NAME.fullmatch(name)}


def _data(payload: bytes, published: str) -> tuple[str, bytes]:
    """The media type and the data; `published` is the media type of the published event."""
    if legacy_content.unwrap(payload) is payload:
        return _XML, payload
    element = _parsed(payload)
    if len(element):
        return _XML, payload
    data = (element.text or "").encode()
    if published.startswith("text/"):
        return _TEXT, data
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return _TEXT, data
    return _JSON, data


def _parsed(fragment: bytes) -> etree._Element:
    # Imported here: processes without such notifications never load lxml.
    from arborcast.core.xml import parse_xml, xml_parser

    return parse_xml(fragment, xml_parser())
