"""TopicNamespace documents: the topics that one namespace defines.

Topics nest. A topic whose parent belongs to another namespace is a top-level element with the parent in @parent. A
topic below a node that is not a topic is written in the same way, since an element would make the node a topic.
MessagePattern, documentation and the namespace's own @final are dropped: the engine does not use them.
"""

from __future__ import annotations

import re
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
from arborcast.topic_model.topics import NCNAME, TopicPath, last_step, make_path, parent_of, parse_path, split_path
from arborcast.topic_model.tree.prefixes import KnownPrefixes, with_prefixes
from arborcast.topic_model.tree.tree import IS_TOPIC, TopicSetBuilder, namespace_of


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
        write_facts(builder.add(record.path), record, standard=False)
    return serialize(builder.root)


def _checked(path: str, element: etree._Element) -> TopicPath:
    try:
        return parse_path(path)
    except TopicError as error:
        raise DocumentError(str(error), line_of(element)) from error


_TOPIC = f"{{{WSTOP}}}Topic"

_clark = re.compile(rf"(?:\{{([^{{}}\s]*)\}})?({NCNAME})")


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


def write_topic_namespaces(records: Iterable[TopicRecord]) -> dict[str, bytes]:
    """One document for each namespace that defines topics, by namespace ("" is none)."""
    by_namespace: dict[str, list[TopicRecord]] = {}
    for record in records:
        by_namespace.setdefault(namespace_of(record.path), []).append(record)
    return {namespace: write_topic_namespace(by_namespace[namespace], namespace) for namespace in sorted(by_namespace)}


def write_topic_namespace(records: Iterable[TopicRecord], namespace: str) -> bytes:
    """The document of one namespace, with the topics of `records` that it defines."""
    own = sorted((r for r in records if namespace_of(r.path) == namespace), key=lambda record: record.path)
    root = etree.Element(f"{{{WSTOP}}}TopicNamespace", nsmap=_prefixes(own), targetNamespace=namespace)
    elements: dict[TopicPath, etree._Element] = {}
    for record in own:
        above = parent_of(record.path)
        parent = None if above is None else elements.get(above)
        # The sort order guarantees that a parent of this namespace precedes it.
        element = elements[record.path] = etree.SubElement(root if parent is None else parent, _TOPIC)
        element.set("name", last_step(record.path).rpartition("}")[2])
        _write_message_types(element, record)
        if record.final:
            element.set("final", "true")
        if above is not None and parent is None:
            element.set("parent", _as_concrete(above, root))
        write_facts(element, record, standard=True)
    return serialize(root)


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


def _write_message_types(element: etree._Element, record: TopicRecord) -> None:
    qnames = [_as_qname(text, element.getroottree().getroot()) for text in record.message_types]
    standard = [qname for qname in qnames if qname]
    if standard:
        element.set("messageTypes", " ".join(standard))
    if len(standard) < len(qnames):
        # A directory may have texts that are not QNames. @messageTypes cannot hold them, so all are in ours too.
        write_all = TopicRecord(record.path, message_types=record.message_types)
        write_facts(element, write_all, standard=False)


def _as_qname(text: str, root: etree._Element) -> str:
    match = _clark.fullmatch(text)
    if match is None:
        return ""
    namespace, name = match.groups()
    return name if not namespace else f"{_prefix(root, namespace)}:{name}"


def _as_concrete(path: TopicPath, root: etree._Element) -> str:
    steps: list[str] = []
    inherited = ""
    for namespace, name in split_path(path):
        steps.append(name if namespace == inherited else f"{_prefix(root, namespace)}:{name}")
        inherited = namespace
    return "/".join(steps)


def _prefix(root: etree._Element, namespace: str) -> str:
    return next(prefix for prefix, uri in root.nsmap.items() if uri == namespace and prefix)


def _prefixes(records: Iterable[TopicRecord]) -> dict[str, str]:
    """A declaration for every namespace that a parent or a message type of these topics mentions."""
    found: dict[str, None] = {}
    for record in records:
        for namespace, _ in split_path(record.path):
            found[namespace] = None
        for text in record.message_types:
            match = _clark.fullmatch(text)
            if match is not None and match.group(1):
                found[match.group(1)] = None
    found.pop("", None)
    numbered = {f"ns{number}": namespace for number, namespace in enumerate(sorted(found), start=1)}
    return {"wstop": WSTOP, "arbor": ARBOR, **numbered}
