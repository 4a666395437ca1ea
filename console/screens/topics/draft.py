"""Collected changes and their records. Pure, except that they are tried on a tree, which is restored.

Each change has its base. If that was changed meanwhile, nothing is overwritten: both are shown.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from arborcast.admin.topic_documents import plan_import
from arborcast.core.errors import TopicError
from arborcast.topic_model.records.control import ControlRecord, TopicRecord, TopicRemoved
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.plans import plan_create, plan_move, plan_remove, plan_update
from arborcast.topic_model.tree.tree import TopicTree


class PutEdit(msgspec.Struct, frozen=True, tag="put"):
    """Add a topic, or change its facts. `base` is the topic when the form was made; None: it did not exist."""

    record: TopicRecord
    base: TopicRecord | None

    @property
    def path(self) -> TopicPath:
        return self.record.path


class Subtree(msgspec.Struct, frozen=True):
    """A node and its subtree, as far as a change depends on it; of the empty path all trees."""

    topics: int
    sum: int

    @classmethod
    def of(cls, tree: TopicTree, path: TopicPath) -> Subtree:
        paths = [*([path] if path in tree else []), *(tree.descendants(path) if path else tree.paths())]
        return cls(len(paths), sum(zlib.crc32(each.encode()) for each in paths))


class MoveEdit(msgspec.Struct, frozen=True, tag="move"):
    """Move a node with all below it, also within its level: give it another name."""

    path: TopicPath
    target: TopicPath
    base: Subtree


class RemoveEdit(msgspec.Struct, frozen=True, tag="remove"):
    """Remove a node with all below it."""

    path: TopicPath
    base: Subtree


class ImportEdit(msgspec.Struct, frozen=True, tag="bring"):
    """Import the topics of a document; with `replace` the others go, and the base is all trees."""

    path: ClassVar[TopicPath] = TopicPath("")

    name: str
    topics: tuple[TopicRecord, ...]
    replace: bool = False
    base: Subtree | None = None


Edit = PutEdit | MoveEdit | RemoveEdit | ImportEdit


@dataclass(frozen=True)
class Conflict:
    """The base of a change is outdated. Of a topic: the base and the current state; of a subtree: the former and
    current number of topics."""

    before: TopicRecord | None = None
    now: TopicRecord | None = None
    topics_before: int = 0
    topics_now: int = 0


@dataclass(frozen=True)
class EditOutcome:
    """The result of one change: its records, or why it is impossible."""

    edit: Edit
    records: tuple[ControlRecord, ...] = ()
    refusal: str = ""
    conflict: Conflict | None = None
    added: int = 0
    changed: int = 0
    removed: int = 0


# Far more than collected by hand; scripts should use the command.
_MOST_EDITS = 1_000

# Some hundred MiB.
MOST_IMPORTED = 1_000_000
"""Topics of imports in one draft, and of all drafts in memory; a single import may have more."""


def mark_of(edits: Iterable[Edit]) -> str:
    """Another one for other edits. Its cost grows with their number: once for a page."""
    shown = [(each.name, len(each.topics)) if isinstance(each, ImportEdit) else each for each in edits]
    return f"{zlib.crc32(repr(shown).encode()):08x}"


@dataclass
class Draft:
    """The collected changes of one person, in order. `found_ms` is the time of changes kept by an earlier console;
    `kept` is False if they cannot be stored."""

    edits: list[Edit] = field(default_factory=list)
    found_ms: int = 0
    kept: bool = True

    def gather(self, edit: Edit) -> None:
        """Append a change. A second form for a topic replaces the first, with its base. Raises TopicError for too
        many."""
        if isinstance(edit, PutEdit):
            for number, other in enumerate(self.edits):
                later = self.edits[number + 1 :]
                if (
                    isinstance(other, PutEdit)
                    and other.path == edit.path
                    and all(isinstance(each, PutEdit) for each in later)
                ):
                    self.edits[number] = PutEdit(edit.record, other.base)
                    if other.base == edit.record:
                        del self.edits[number]
                    return
        if len(self.edits) >= _MOST_EDITS:
            raise TopicError(f"{_MOST_EDITS} changes are staged already: save them first")
        if self.imported and isinstance(edit, ImportEdit) and self.imported + len(edit.topics) > MOST_IMPORTED:
            raise TopicError(f"{self.imported:,} topics of imports are staged already: save them first")
        self.edits.append(edit)

    @property
    def imported(self) -> int:
        """The number of topics in its imports."""
        return sum(len(each.topics) for each in self.edits if isinstance(each, ImportEdit))

    def drop(self, number: int) -> None:
        """Without this one. One that is not there was dropped already."""
        if 0 <= number < len(self.edits):
            del self.edits[number]

    def keep(self, number: int, tree: TopicTree) -> None:
        """Use the current state as the base of this change: its author has seen it and decided."""
        if 0 <= number < len(self.edits):
            edit = self.edits[number]
            if isinstance(edit, PutEdit):
                self.edits[number] = msgspec.structs.replace(edit, base=tree.get(edit.path))
            elif edit.base is not None:
                self.edits[number] = msgspec.structs.replace(edit, base=Subtree.of(tree, edit.path))


@contextmanager
def as_if(tree: TopicTree, edits: Sequence[Edit], *, large: bool = True) -> Iterator[list[EditOutcome]]:
    """The results of the changes, and within the block the tree with them. Nothing else may read or change the tree
    meanwhile: no await in the block. With `large` False, changes of very many topics are left out, to limit the time of
    a page."""
    undo: list[tuple[TopicPath, TopicRecord | None]] = []
    edits = edits if large else [edit for edit in edits if not _is_large(edit)]
    conflicts = [conflict_of(tree, edit) for edit in edits]
    try:
        outcomes = []
        for edit, conflict in zip(edits, conflicts, strict=True):
            if conflict is not None:
                outcomes.append(EditOutcome(edit, conflict=conflict))
            else:
                outcomes.append(_try(tree, edit, undo))
        yield outcomes
    finally:
        for path, old in reversed(undo):
            if old is None:
                tree.remove(path)
            else:
                tree.put(old)


def conflict_of(tree: TopicTree, edit: Edit) -> Conflict | None:
    """Whether the base of the change is outdated, on the tree without other changes."""
    if isinstance(edit, PutEdit):
        now = tree.get(edit.path)
        return None if now == edit.base or now == edit.record else Conflict(edit.base, now)
    if edit.base is None:
        return None
    now_there = Subtree.of(tree, edit.path)
    if now_there == edit.base:
        return None
    return Conflict(topics_before=edit.base.topics, topics_now=now_there.topics)


# Topics that can be removed and restored in some tens of milliseconds.
LARGE = 5_000


def _is_large(edit: Edit) -> bool:
    return isinstance(edit, ImportEdit) or (not isinstance(edit, PutEdit) and edit.base.topics > LARGE)


def _try(tree: TopicTree, edit: Edit, undo: list[tuple[TopicPath, TopicRecord | None]]) -> EditOutcome:
    try:
        if isinstance(edit, ImportEdit):
            # It changes the tree as it proceeds.
            touched = {record.path for record in edit.topics} | (set(tree.paths()) if edit.replace else set())
            undo += [(path, tree.get(path)) for path in touched]
            brought = plan_import(tree, edit.topics, replace=edit.replace)
            return EditOutcome(edit, brought.records, "", None, brought.added, brought.changed, brought.removed)
        records = _plan(tree, edit)
    except TopicError as error:
        return EditOutcome(edit, refusal=str(error))
    put = [record.path for record in records if isinstance(record, TopicRecord)]
    added = sum(path not in tree for path in put)
    removed = sum(isinstance(record, TopicRemoved) for record in records)
    for record in records:
        if isinstance(record, TopicRecord | TopicRemoved):
            undo.append((record.path, tree.get(record.path)))
            tree.apply(record)
    return EditOutcome(edit, tuple(records), "", None, added, len(put) - added, removed)


def _plan(tree: TopicTree, edit: PutEdit | MoveEdit | RemoveEdit) -> list[ControlRecord]:
    match edit:
        case PutEdit(record=record):
            return plan_update(tree, record) if record.path in tree else plan_create(tree, record)
        case MoveEdit(path=path, target=target):
            return plan_move(tree, path, target)
        case RemoveEdit(path=path):
            return plan_remove(tree, path, recursive=True)
