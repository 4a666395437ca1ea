"""A camera's events as notifications below `cameras/NAME`.

The topic is the camera's, without the namespace of ONVIF; names of vendors keep theirs. A property has a topic of its
own for each of its sources, `InputToken.1`, so that the current message of the topic is its state. The payload is the
camera's element as it was sent, with its PropertyOperation and items.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator
from typing import NamedTuple

from lxml import etree

from arborcast.core.errors import ExpressionError, TopicError
from arborcast.ingest.cameras.messages import Notice
from arborcast.ingest.operations.onvif import TT
from arborcast.ingest.operations.publishing import UNACCEPTED
from arborcast.topic_model.expressions import FULL, concrete_topic
from arborcast.topic_model.message_types import stored_type
from arborcast.topic_model.namespaces import wsnt
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import Step, TopicPath, make_path, split_path
from arborcast.wire.errors import MalformedMessage
from arborcast.wire.topics import PublishedTopic, read_published
from arborcast.wire.xml_reading import check_payload

ROOT = "cameras"

MOST_TOPICS = 256
"""Topics of properties of one camera; further ones have the topic without their source, and no current message."""

ONVIF_TOPICS = "http://www.onvif.org/ver10/topics"

_MESSAGE, _SOURCE, _ITEM = f"{{{TT}}}Message", f"{{{TT}}}Source", f"{{{TT}}}SimpleItem"

_MOST_ITEMS, _MOST_VALUE = 4, 100

_NOT_IN_NAMES = re.compile(r"[^-.0-9A-Za-z_]|_(?=x)")


class CameraEvents(NamedTuple):
    """Notifications, their topics that have a current message, and the number of unreadable events."""

    notifications: list[Notification]
    properties: set[TopicPath]
    unreadable: int


def folder(name: str) -> TopicPath:
    """The root topic of a camera."""
    return make_path([("", ROOT), ("", name)])


def read_events(
    name: str, notices: Iterable[Notice], known: Container[TopicPath], room: int, new_id: Callable[[], str]
) -> CameraEvents:
    """The events of a camera; `room` is for topics of properties that are not `known`."""
    found = CameraEvents([], set(), 0)
    unreadable = 0
    for notice in notices:
        try:
            check_payload(notice.fragment, notice.payload)
            topic = _topic(notice.element)
            steps = _below(name, topic.path if topic is not None else None)
            path, prefixes = make_path(steps), "" if topic is None else topic.prefixes
            if notice.payload.tag == _MESSAGE and notice.payload.get("PropertyOperation"):
                own = make_path([*steps, *_sources(notice.payload, steps[-1][0])])
                if own in known or own in found.properties or room > 0:
                    room -= own not in known and own not in found.properties
                    found.properties.add(own)
                    path = own
        except (ExpressionError, TopicError, MalformedMessage):
            unreadable += 1
            continue
        kind = stored_type(str(notice.payload.tag))
        found.notifications.append(
            Notification(new_id(), path, notice.fragment, UNACCEPTED, prefixes=prefixes, type=kind)
        )
    return found._replace(unreadable=unreadable)


def _topic(message: etree._Element) -> PublishedTopic | None:
    """The topic of an event; None if it has none. Raises ExpressionError."""
    element = message.find(wsnt("Topic"))
    text = "" if element is None else "".join((element.text or "").split()).removesuffix("//.").rstrip("/")
    if element is None or not text:
        return None
    try:
        return read_published(element)
    except ExpressionError:
        # With a tail as in expressions, or without its declarations.
        declared = {prefix or "": uri for prefix, uri in element.nsmap.items() if uri}
        names = (part if part.partition(":")[0] in declared else part.rpartition(":")[2] for part in text.split("/"))
        return PublishedTopic(concrete_topic("/".join(names), FULL, declared), "")


def _below(name: str, topic: TopicPath | None) -> list[Step]:
    steps: list[Step] = [("", ROOT), ("", name)]
    for namespace, step in () if topic is None else split_path(topic):
        plain = namespace == ONVIF_TOPICS and not steps[-1][0]
        steps.append(("" if plain else namespace or steps[-1][0], step))
    return steps


def _sources(payload: etree._Element, namespace: str) -> Iterator[Step]:
    for item in [*payload.iterfind(f"{_SOURCE}/{_ITEM}")][:_MOST_ITEMS]:
        text = f"{item.get('Name') or 'Source'}.{(item.get('Value') or '')[:_MOST_VALUE]}"
        # Reversible: two sources have two topics.
        safe = _NOT_IN_NAMES.sub(lambda found: f"_x{ord(found[0]):x}_", text)
        yield namespace, safe if safe[0].isalpha() or safe[0] == "_" else f"_{safe}"
