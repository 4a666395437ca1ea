"""TopicSet documents: the tree that `topic_model.topic_set` describes, with the topics' facts as attributes."""

from __future__ import annotations

from collections.abc import Iterable

from lxml import etree

from topic_model.documents.facts import ARBOR, read_facts, write_facts
from topic_model.documents.parsing import boolean, line_of, parse_document, serialize
from topic_model.errors import DocumentError, TopicError
from topic_model.records import TopicRecord
from topic_model.topic_set import IS_TOPIC, TopicSetBuilder
from topic_model.topics import TopicPath, parse_path


def read_topic_set(data: bytes) -> tuple[TopicRecord, ...]:
    """The topics of a TopicSet document, sorted by path. Elements that are no topics (descriptions) are passed over."""
    records: dict[TopicPath, TopicRecord] = {}
    # A stack and not recursion; of each element the path and the namespace that its children inherit.
    waiting: list[tuple[etree._Element, str, str]] = [(parse_document(data, "TopicSet"), "", "")]
    while waiting:
        parent, parent_path, parent_namespace = waiting.pop()
        for element in parent:
            name = etree.QName(element)
            namespace = name.namespace or parent_namespace
            step = name.localname if namespace == parent_namespace else f"{{{namespace}}}{name.localname}"
            path = f"{parent_path}/{step}" if parent_path else step
            waiting.append((element, path, namespace))
            if boolean(element.get(IS_TOPIC)):
                record = read_facts(element, _checked(path, element))
                if record.path in records:
                    raise DocumentError(f"the topic {path} is there twice", path, line_of(element))
                records[record.path] = record
    return tuple(records[path] for path in sorted(records))


def write_topic_set(records: Iterable[TopicRecord]) -> bytes:
    """The TopicSet document of these topics; equal topics give equal bytes."""
    builder = TopicSetBuilder({"arbor": ARBOR})
    for record in sorted(records, key=lambda record: record.path):
        write_facts(builder.add(record.path), record, standard=False)
    return serialize(builder.root)


def _checked(path: str, element: etree._Element) -> TopicPath:
    try:
        return parse_path(path)
    except TopicError as error:
        raise DocumentError(str(error), path[:200], line_of(element)) from error
