"""Documents of topics: wstop TopicSet and TopicNamespace (XML), and JSON; read and written.

Reading returns TopicRecords, sorted by path, as input of a plan; it changes no tree. Properties that the standard
documents cannot express (code, policy) are attributes in a namespace of Arborcast, which other readers ignore; so a
tree survives a round trip through any of the three. Unreadable documents raise DocumentError with the line.
"""

from __future__ import annotations

from arborcast.topic_model.documents.facts import MAX_DOCUMENT_BYTES, read_json, write_json
from arborcast.topic_model.documents.topic_namespace import (
    read_topic_namespace,
    read_topic_set,
    write_topic_namespace,
    write_topic_namespaces,
    write_topic_set,
)

__all__ = [
    "MAX_DOCUMENT_BYTES",
    "read_json",
    "read_topic_namespace",
    "read_topic_set",
    "write_json",
    "write_topic_namespace",
    "write_topic_namespaces",
    "write_topic_set",
]
