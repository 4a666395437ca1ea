"""The tree as JSON: every fact of every topic, sorted by path, for scripts and for version control."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from core.errors import DocumentError, TopicError
from topic_model.documents.facts import MAX_DOCUMENT_BYTES
from topic_model.records.control import TopicRecord
from topic_model.topics import TopicPath, parse_path

VERSION: Final = 1


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    topics: tuple[TopicRecord, ...]


_decoder = msgspec.json.Decoder(_Document)


def write_json(records: Iterable[TopicRecord]) -> bytes:
    """The JSON document of these topics; equal topics give equal bytes."""
    topics = tuple(sorted(records, key=lambda record: record.path))
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
        raise DocumentError(f"the document has version {document.version}, this Arborcast knows {VERSION}")
    records: dict[TopicPath, TopicRecord] = {}
    for record in document.topics:
        try:
            path = parse_path(record.path)
        except TopicError as error:
            raise DocumentError(str(error), record.path[:200]) from error
        if path in records:
            raise DocumentError(f"the topic {path} is there twice", path)
        records[path] = msgspec.structs.replace(record, path=path)
    return tuple(records[path] for path in sorted(records))
