"""A topic's facts as XML attributes in our own namespace, for what the wstop documents have no words for."""

from __future__ import annotations

from typing import Final

import msgspec
from lxml import etree

from topic_model.documents.parsing import boolean, line_of
from topic_model.errors import DocumentError
from topic_model.records import TopicPolicy, TopicRecord
from topic_model.topics import TopicPath

ARBOR: Final = "urn:arborcast:topic"

_strings = msgspec.json.Decoder(tuple[str, ...])


def write_facts(element: etree._Element, record: TopicRecord, *, standard: bool) -> None:
    """Write what differs from the defaults. `standard`: message types and `final` stand elsewhere already."""
    policy = record.policy
    facts = {
        "code": record.code,
        "retain": "true" if policy.retain else "",
        "priority": str(policy.priority) if policy.priority else "",
        "routing": policy.routing,
        "publishers": _list(policy.publishers),
    }
    if not standard:
        facts["messageTypes"] = _list(record.message_types)
        facts["final"] = "true" if record.final else ""
    for name, value in facts.items():
        if value:
            try:
                element.set(f"{{{ARBOR}}}{name}", value)
            except ValueError as error:  # control characters
                problem = f"{name} of topic {record.path}, {value[:80]!r}, cannot be written as XML"
                raise DocumentError(problem, record.path) from error


def read_facts(
    element: etree._Element, path: TopicPath, *, message_types: tuple[str, ...] = (), final: bool = False
) -> TopicRecord:
    """The record of a topic; the two arguments are what the standard attributes say."""

    def text(name: str) -> str:
        return element.get(f"{{{ARBOR}}}{name}", "")

    def strings(name: str) -> tuple[str, ...]:
        try:
            return _strings.decode(text(name)) if text(name) else ()
        except msgspec.DecodeError as error:
            raise DocumentError(
                f"{name} of topic {path} must be a JSON list of texts", path, line_of(element)
            ) from error

    try:
        priority = int(text("priority") or 0)
    except ValueError as error:
        raise DocumentError(f"priority of topic {path} must be a whole number", path, line_of(element)) from error
    return TopicRecord(
        path=path,
        code=text("code"),
        message_types=strings("messageTypes") or message_types,
        final=boolean(text("final")) or final,
        policy=TopicPolicy(
            retain=boolean(text("retain")),
            priority=priority,
            routing=text("routing"),
            publishers=strings("publishers"),
        ),
    )


def _list(values: tuple[str, ...]) -> str:
    return msgspec.json.encode(values).decode() if values else ""
