"""The common part of documents of topics: safe parsing of untrusted XML (no DTD, no entities, no network, bounded in
size and depth), and attributes in a namespace of Arborcast for properties that wstop documents cannot express."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from lxml import etree

from arborcast.core.errors import DocumentError, TopicError
from arborcast.core.xml import xml_parser
from arborcast.topic_model.namespaces import WSTOP
from arborcast.topic_model.records.control import TopicPolicy, TopicRecord
from arborcast.topic_model.topics import TopicPath, parse_path

_MAX_PRIORITY_DIGITS: Final = 18

MAX_DOCUMENT_BYTES: Final = 256 * 1024 * 1024  # a TopicSet of a million topics has about 100 MB


def parse_document(data: bytes, expected_root: str) -> etree._Element:
    """The root element, which must be `{WSTOP}expected_root`. Raises DocumentError."""
    if len(data) > MAX_DOCUMENT_BYTES:
        raise DocumentError(f"a document may be {MAX_DOCUMENT_BYTES} bytes long, this one is {len(data)}")
    try:
        root = etree.fromstring(data, xml_parser(comments=False))
    except etree.XMLSyntaxError as error:
        raise DocumentError(f"not well-formed XML: {error.msg}", line=error.lineno) from error
    if root.getroottree().docinfo.internalDTD is not None:
        raise DocumentError("a document of topics may not have a DOCTYPE", line=1)
    if root.tag != f"{{{WSTOP}}}{expected_root}":
        raise DocumentError(f"the root element is {root.tag}, {{{WSTOP}}}{expected_root} is needed", line=line_of(root))
    return root


def line_of(element: etree._Element) -> int | None:
    """The line of the element's start tag, if known."""
    line: object = element.sourceline
    return line if isinstance(line, int) else None


def boolean(text: str | None) -> bool:
    """An xs:boolean attribute; absent is false."""
    return text is not None and text.strip() in ("true", "1")


def serialize(root: etree._Element) -> bytes:
    """The document in UTF-8, indented."""
    etree.indent(root)
    result: bytes = etree.tostring(root, encoding="UTF-8", xml_declaration=True)
    return result + b"\n"


ARBOR: Final = "urn:arborcast:topic"

_strings = msgspec.json.Decoder(tuple[str, ...])


def write_facts(element: etree._Element, record: TopicRecord) -> None:
    """Write the properties that differ from the defaults."""
    policy = record.policy
    facts = {
        "code": record.code,
        "retain": {True: "true", False: "false", None: ""}[policy.retain],
        "priority": str(policy.priority) if policy.priority else "",
        "routing": policy.routing,
        "publishers": _list(policy.publishers),
        "queue": "true" if policy.queue else "",
        "merge": "" if policy.merge else "false",
        "messageTypes": _list(record.message_types),
        "final": "true" if record.final else "",
    }
    for name, value in facts.items():
        if value:
            try:
                element.set(f"{{{ARBOR}}}{name}", value)
            except ValueError as error:  # control characters
                problem = f"{name} of topic {record.path}, {value[:80]!r}, cannot be written as XML"
                raise DocumentError(problem) from error


def read_facts(
    element: etree._Element, path: TopicPath, *, message_types: tuple[str, ...] = (), final: bool = False
) -> TopicRecord:
    """The record of a topic; `message_types` and `final` are from the standard attributes."""

    def text(name: str) -> str:
        return element.get(f"{{{ARBOR}}}{name}", "")

    def strings(name: str) -> tuple[str, ...]:
        try:
            return _strings.decode(text(name)) if text(name) else ()
        except msgspec.DecodeError as error:
            raise DocumentError(f"{name} of topic {path} must be a JSON list of strings", line_of(element)) from error

    priority = text("priority").strip() or "0"
    # isdigit and int() accept the digits of forty scripts. The length limit is that of the directory.
    digits = priority[1:] if priority[0] in "+-" else priority
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_PRIORITY_DIGITS):
        raise DocumentError(f"priority of topic {path} must be an integer", line_of(element))
    return TopicRecord(
        path=path,
        code=text("code"),
        message_types=strings("messageTypes") or message_types,
        final=boolean(text("final")) or final,
        policy=TopicPolicy(
            retain=boolean(text("retain")) if text("retain") else None,
            priority=int(priority),
            routing=text("routing"),
            publishers=strings("publishers"),
            queue=boolean(text("queue")),
            merge=boolean(text("merge") or "true"),
        ),
    )


def _list(values: tuple[str, ...]) -> str:
    return msgspec.json.encode(values).decode() if values else ""


VERSION: Final = 1


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    topics: tuple[TopicRecord, ...]


_decoder = msgspec.json.Decoder(_Document)


def write_json(records: Iterable[TopicRecord]) -> bytes:
    """The JSON document of these topics; equal topics give equal bytes."""
    # A generated code is an explicit one for the reader of the document.
    plain = (msgspec.structs.replace(each, placed=False) if each.placed else each for each in records)
    topics = tuple(sorted(plain, key=lambda record: record.path))
    return msgspec.json.format(msgspec.json.encode(_Document(VERSION, topics)), indent=2) + b"\n"


def read_json(data: bytes) -> tuple[TopicRecord, ...]:
    """The topics of a JSON document, sorted by path."""
    if len(data) > MAX_DOCUMENT_BYTES:
        raise DocumentError(f"a document may be {MAX_DOCUMENT_BYTES} bytes long, this one is {len(data)}")
    try:
        document = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DocumentError(f"not a JSON document of topics: {error}") from error
    if document.version != VERSION:
        raise DocumentError(f"the document has version {document.version}, this Arborcast supports {VERSION}")
    records: dict[TopicPath, TopicRecord] = {}
    for record in document.topics:
        try:
            path = parse_path(record.path)
        except TopicError as error:
            raise DocumentError(str(error)) from error
        if path in records:
            raise DocumentError(f"the document has the topic {path} twice")
        records[path] = msgspec.structs.replace(record, path=path, placed=False)
    return tuple(records[path] for path in sorted(records))
