"""Topic trees as documents (LDIF, TopicSet, TopicNamespace, JSON), and the plan of an import."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from arborcast.admin import control_log
from arborcast.admin.operations import commit
from arborcast.core.errors import ConfigError, TopicError
from arborcast.core.progress import Progress, no_progress
from arborcast.core.settings import KafkaSettings
from arborcast.directory.entries import ldif
from arborcast.directory.entries.changes import Put, Workspace
from arborcast.directory.entries.dn import parse_dn
from arborcast.directory.entries.entries import EntrySet
from arborcast.directory.entries.mapping import Listing, write_base
from arborcast.directory.entries.reader import read_listing
from arborcast.topic_model.documents.facts import read_json, write_json
from arborcast.topic_model.documents.topic_namespace import read_topic_namespace, read_topic_set, write_topic_set
from arborcast.topic_model.records.control import ControlRecord, Tombstone, TopicRecord, TopicRemoved
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.plans import plan_create, plan_update
from arborcast.topic_model.tree.tree import TopicTree

Format = Literal["ldif", "topicset", "json"]

# Limit of named refused topics of an import.
_MAX_NAMED = 10

_SUFFIXES: Mapping[str, Format] = {".ldif": "ldif", ".xml": "topicset", ".json": "json"}

_TOPIC_NAMESPACE = re.compile(rb"<(?:[\w.-]+:)?TopicNamespace\b")


def format_of(file: Path | None, name: Format | None, data: bytes = b"") -> Format:
    """The format of a document: the given one, else by file name, else by its first characters. Raises ConfigError."""
    if name is not None:
        return name
    if file is not None and file.suffix.lower() in _SUFFIXES:
        return _SUFFIXES[file.suffix.lower()]
    if data:
        first = data.removeprefix(codecs.BOM_UTF8).lstrip()[:1]
        return "topicset" if first == b"<" else "json" if first in (b"{", b"[") else "ldif"
    raise ConfigError("choose the format with --format ldif, topicset or json (or by the file's name)")


def write_document(records: Iterable[TopicRecord], form: Format, base_dn: str) -> bytes:
    """The topics as a document; LDIF as for `ldapadd`, parents first, with the base entry. Raises ConfigError for a
    base without a known kind of entry."""
    if form == "json":
        return write_json(records)
    if form == "topicset":
        return write_topic_set(records)
    entries, base = EntrySet(), parse_dn(base_dn)
    if write_base(base) is None:
        raise ConfigError(f"LDIF needs a base entry of the kind ou=, o= or cn=, not {base_dn}; other formats need none")
    workspace = Workspace(entries, Listing(initialised=False), base)
    problems, _ = workspace.write([Put(record) for record in sorted(records, key=lambda record: record.path)])
    if problems:
        raise ConfigError(str(problems[0]))
    return ldif.write(map(ldif.render, entries))


def read_document(data: bytes, form: Format, base_dn: str) -> tuple[tuple[TopicRecord, ...], tuple[str, ...]]:
    """(topics, skipped entries with reasons) of a document. Raises DocumentError or LdifError."""
    if form == "json":
        return read_json(data), ()
    if form == "topicset":
        reader = read_topic_namespace if _TOPIC_NAMESPACE.search(data, 0, 4096) else read_topic_set
        return reader(data), ()
    entries = EntrySet(block.entry for block in ldif.parse(data) if block.entry is not None)
    listing = read_listing(entries, parse_dn(base_dn))
    if not listing.entries and len(entries):
        raise ConfigError(f"the file has {len(entries)} entries, but no topics below {base_dn}; see --base-dn")
    return tuple(listing.records().values()), tuple(map(str, listing.problems))


def import_topics(
    kafka: KafkaSettings,
    topics: Sequence[TopicRecord],
    *,
    replace: bool = False,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> Import:
    """Import topics, all or none; with `dry_run`, only plan it. Raises ConfigError for a document without topics that
    would replace all, as of an export that failed in a pipe; TopicError, InfrastructureError."""
    if replace and not topics:
        raise ConfigError("the document has no topics, and --replace would remove all: is it the right one, and whole?")
    tree = control_log.read_tree(kafka)
    before = {each.path: each for each in tree.records()}
    planned = plan_import(tree, topics, replace=replace, progress=progress)
    if not dry_run:
        commit(kafka, "topics import", planned.records, lambda path: before.get(TopicPath(path)), progress)
    return planned


@dataclass(frozen=True)
class Import:
    """The result of an import: records to append, and the number of changed topics."""

    records: tuple[ControlRecord, ...]
    added: int
    changed: int
    removed: int


def plan_import(
    tree: TopicTree, topics: Sequence[TopicRecord], *, replace: bool = False, progress: Progress = no_progress
) -> Import:
    """The records that import these topics; `replace` also removes every other topic. Changes `tree`. All or nothing:
    raises TopicError with the names of invalid topics."""
    # Removals first: the code of a removed topic, or its `final`, must not block its replacement.
    removed = sorted(set(tree.paths()) - {record.path for record in topics}, reverse=True) if replace else []
    records: list[ControlRecord] = [TopicRemoved(path) for path in removed]
    records += [Tombstone.of("topic", path) for path in removed]
    for record in records:
        tree.apply(record)
    refused: list[TopicError] = []
    added = changed = 0
    for number, topic in enumerate(sorted(topics, key=lambda record: record.path)):
        progress("comparing topics", number, len(topics))
        known = topic.path in tree
        try:
            planned = plan_update(tree, topic) if known else plan_create(tree, topic)
        except TopicError as error:
            refused.append(error)
            continue
        for record in planned:
            tree.apply(record)
        records += planned
        added += bool(planned) and not known
        changed += bool(planned) and known
    if refused:
        named = "; ".join(str(error) for error in refused[:_MAX_NAMED])
        more = f"; and {len(refused) - _MAX_NAMED} more" if len(refused) > _MAX_NAMED else ""
        raise TopicError(f"nothing was imported, {len(refused)} topics cannot be: {named}{more}")
    return Import(tuple(records), added, changed, len(removed))
