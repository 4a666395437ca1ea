"""TopicSet documents, read and written, and TopicNamespace documents: the topics that one namespace defines, read only.

In a TopicNamespace topics nest. A topic whose parent belongs to another namespace, or is not a topic, is a top-level
element with the parent in @parent. MessagePattern, documentation and the namespace's own @final are dropped: the engine
does not use them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lxml import etree

from arborcast.core.errors import DocumentError, ExpressionError, TopicError
from arborcast.topic_model.documents.facts import (
    ARBOR,
    boolean,
    line_of,
    parse_document,
    read_facts,
    serialize,
    write_facts,
)
from arborcast.topic_model.expressions import CONCRETE, concrete_topic
from arborcast.topic_model.namespaces import WSTOP
from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.topics import TopicPath, make_path, parse_path, split_path
from arborcast.topic_model.tree.prefixes import KnownPrefixes, with_prefixes
from arborcast.topic_model.tree.tree import IS_TOPIC, TopicSetBuilder


def read_topic_set(data: bytes) -> tuple[TopicRecord, ...]:
    """The topics of a TopicSet document, sorted by path. Other elements (descriptions) are ignored."""
    records: dict[TopicPath, TopicRecord] = {}
    declared: dict[str, str] = {}
    # Elements with their paths and the namespaces that their children inherit; a stack instead of recursion.
    waiting: list[tuple[etree._Element, str, str]] = [(parse_document(data, "TopicSet"), "", "")]
    while waiting:
        parent, parent_path, parent_namespace = waiting.pop()
        for element in parent:
            name = etree.QName(element)
            namespace = name.namespace or parent_namespace
            step = name.localname if namespace == parent_namespace else f"{{{namespace}}}{name.localname}"
            path = f"{parent_path}/{step}" if parent_path else step
            waiting.append((element, path, namespace))
            if element.prefix:
                declared.setdefault(namespace, element.prefix)
            if boolean(element.get(IS_TOPIC)):
                record = read_facts(element, _checked(path, element))
                if record.path in records:
                    raise DocumentError(f"the document has the topic {path} twice", line_of(element))
                records[record.path] = record
    return with_prefixes((records[path] for path in sorted(records)), declared)


def write_topic_set(records: Iterable[TopicRecord]) -> bytes:
    """The TopicSet document of these topics; equal topics give equal bytes."""
    records = sorted(records, key=lambda record: record.path)
    builder = TopicSetBuilder(KnownPrefixes().declarations(record.path for record in records) | {"arbor": ARBOR})
    for record in records:
        write_facts(builder.add(record.path), record)
    return serialize(builder.root)


def _checked(path: str, element: etree._Element) -> TopicPath:
    try:
        return parse_path(path)
    except TopicError as error:
        raise DocumentError(str(error), line_of(element)) from error


_TOPIC = f"{{{WSTOP}}}Topic"


def read_topic_namespace(data: bytes) -> tuple[TopicRecord, ...]:
    """The topics of a TopicNamespace document, sorted by path."""
    root = parse_document(data, "TopicNamespace")
    namespace = root.get("targetNamespace")
    if namespace is None:
        raise DocumentError("the TopicNamespace has no targetNamespace", line=line_of(root))
    records: dict[TopicPath, TopicRecord] = {}
    waiting = [(element, _named_parent(element)) for element in root.iterchildren(_TOPIC)]
    while waiting:
        element, parent = waiting.pop()
        path = _path_of(element, parent, namespace)
        if path in records:
            raise DocumentError(f"the document has the topic {path} twice", line_of(element))
        records[path] = read_facts(
            element,
            path,
            message_types=tuple(_read_qnames(element)),
            final=boolean(element.get("final")),
        )
        waiting.extend((child, path) for child in element.iterchildren(_TOPIC))
    declared = {uri: prefix for prefix, uri in root.nsmap.items() if prefix}
    return with_prefixes((records[path] for path in sorted(records)), declared)


def _path_of(element: etree._Element, parent: TopicPath | None, namespace: str) -> TopicPath:
    name = element.get("name")
    if name is None:
        raise DocumentError("a Topic has no name", line_of(element))
    above = () if parent is None else split_path(parent)
    try:
        return make_path((*above, (namespace, name.strip())))
    except TopicError as error:
        raise DocumentError(str(error), line_of(element)) from error


def _named_parent(element: etree._Element) -> TopicPath | None:
    text = element.get("parent")
    if text is None:
        return None
    try:
        return concrete_topic(text, CONCRETE, {prefix or "": uri for prefix, uri in element.nsmap.items()})
    except ExpressionError as error:
        raise DocumentError(f"@parent: {error}", line=line_of(element)) from error


def _read_qnames(element: etree._Element) -> Iterator[str]:
    for text in element.get("messageTypes", "").split():
        prefix, colon, name = text.rpartition(":")
        namespace = element.nsmap.get(prefix or None)
        if colon and namespace is None:
            raise DocumentError(f"the prefix of {text!r} in @messageTypes is not declared", line=line_of(element))
        yield f"{{{namespace}}}{name}" if namespace else name
