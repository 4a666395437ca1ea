"""Import of organizational units of another system's LDAP server as topics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import NamedTuple

from arborcast.admin import control_log
from arborcast.admin.operations import commit
from arborcast.core.errors import TopicError
from arborcast.core.progress import Progress, no_progress
from arborcast.core.settings import KafkaSettings
from arborcast.directory.entries.dn import parse_dn
from arborcast.directory.entries.entries import Entry
from arborcast.directory.entries.mapping import EntryProblem, ProblemKind
from arborcast.directory.entries.units import Units, read_units
from arborcast.directory.settings import DirectorySettings
from arborcast.directory.stores.ldap_client import LdapSession
from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.plans import plan_create
from arborcast.topic_model.tree.tree import TopicTree


class UnitsImport(NamedTuple):
    """The topics to add or added, the number of existing topics, which stay unchanged, skipped or changed units, the
    number of entries that are no units, and the ignored attributes, with the number of topics that have them."""

    topics: tuple[TopicRecord, ...]
    unchanged: int
    problems: tuple[EntryProblem, ...]
    others: int
    left_out: Mapping[str, int]


def import_units(
    kafka: KafkaSettings,
    server: DirectorySettings,
    root: TopicPath | None,
    *,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> UnitsImport:
    """Add the missing topics; with `dry_run`, only plan it. Existing topics stay unchanged, so the same import again
    adds nothing. Raises DirectoryError, TopicError, InfrastructureError."""
    units = _read(server, root, progress)
    planned = _plan(control_log.read_tree(kafka), units, progress)
    if not dry_run:
        commit(kafka, "topics import-units", planned.topics, lambda _path: None, progress)
    return planned


def _read(server: DirectorySettings, root: TopicPath | None, progress: Progress) -> Units:
    """The units below the base entry. Raises DirectoryError, NoSuchEntry."""
    base = parse_dn(server.base_dn)

    def counted(entries: Iterator[Entry]) -> Iterator[Entry]:
        for number, entry in enumerate(entries, 1):
            progress(f"reading {server.url}", number)
            yield entry

    with closing(LdapSession(server)) as session:
        return read_units(counted(session.read_tree(base)), base, root)


def _plan(tree: TopicTree, units: Units, progress: Progress) -> UnitsImport:
    """The missing topics. A topic whose code is already in use is added without its code. Changes `tree`."""
    added: list[TopicRecord] = []
    problems = list(units.problems)
    unchanged = 0
    for number, topic in enumerate(units.topics):
        progress("comparing topics", number, len(units.topics))
        if topic.path in tree:
            unchanged += 1
            continue
        owners = tree.paths_with_code(topic.code) if topic.code else ()
        if owners:
            reason = f"its code {topic.code!r} belongs to {owners[0]} here: imported without it"
            problems.append(EntryProblem(ProblemKind.DUPLICATE_CODE, topic.path, reason, topic.path))
            topic = TopicRecord(topic.path)
        try:
            plan_create(tree, topic)
        except TopicError as error:
            problems.append(EntryProblem(ProblemKind.BELOW_FINAL, topic.path, str(error), topic.path))
            continue
        tree.put(topic)
        added.append(topic)
    return UnitsImport(tuple(added), unchanged, tuple(problems), units.others, units.left_out)
