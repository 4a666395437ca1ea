"""Changes of topics, and the edits of entries that implement them. Pure.

Both directories use the same plan, so a file and a server have the same entries after the same changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from arborcast.directory.entries.dn import Dn, Rdn, fold, format_dn
from arborcast.directory.entries.entries import Entry, EntrySet, moved_key
from arborcast.directory.entries.mapping import (
    FACTS,
    NAMES,
    EntryProblem,
    Listing,
    ProblemKind,
    write_base,
    write_entry,
    write_facts,
    write_rdn,
)
from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.topics import TopicPath, ancestors


@dataclass(frozen=True, slots=True)
class Put:
    """Set the properties of a topic; other attributes of its entry stay."""

    record: TopicRecord


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a topic. Its entry stays as a node while other entries are below it."""

    path: TopicPath


@dataclass(frozen=True, slots=True)
class Move:
    """Move the entry at `old` with its subtree to `new`."""

    old: TopicPath
    new: TopicPath


Change = Put | Remove | Move


@dataclass(frozen=True, slots=True)
class AddEntry:
    """Add this entry at `path` (None: the base)."""

    entry: Entry
    path: TopicPath | None


@dataclass(frozen=True, slots=True)
class ModifyEntry:
    """Replace these attributes of the entry; without values an attribute is removed."""

    entry: Entry
    replace: Mapping[str, tuple[bytes, ...]]


@dataclass(frozen=True, slots=True)
class DeleteEntry:
    """Delete a leaf entry."""

    entry: Entry
    path: TopicPath


@dataclass(frozen=True, slots=True)
class RenameEntry:
    """Give the entry another RDN and parent, with its subtree."""

    entry: Entry
    rdn: Rdn
    parent: Dn
    old: TopicPath
    new: TopicPath


Edit = AddEntry | ModifyEntry | DeleteEntry | RenameEntry


class CannotWrite(Exception):
    """A change does not fit the directory's current entries, or is refused; caught by `Workspace.write`."""

    def __init__(self, problem: EntryProblem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class Workspace:
    """The entries of a directory during a write."""

    def __init__(self, entries: EntrySet, listing: Listing, base: Dn) -> None:
        self.entries = entries
        self._places = dict(listing.places)
        self._paths = {key: path for path, key in listing.places.items()}
        self.moved: dict[Dn, Dn] = {}
        """Keys of moved entries, with their keys before the first move."""
        self._base = base
        self._base_key = fold(base)

    def write(
        self,
        changes: Sequence[Change],
        carry_out: Callable[[Edit, Change], None] = lambda _edit, _change: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> tuple[list[EntryProblem], int]:
        """Write the changes: moves, then puts from the root down, then removals from the leaves up. `carry_out` is
        called for each edit before it is applied here; it may raise CannotWrite. Returns the problems of unwritten
        changes, and the number of changes left after a `stop`."""
        moves = [c for c in changes if isinstance(c, Move)]
        puts = sorted((c for c in changes if isinstance(c, Put)), key=lambda c: c.record.path.count("/"))
        removals = sorted((c for c in changes if isinstance(c, Remove)), key=lambda c: -c.path.count("/"))
        ordered: list[Change] = [*moves, *puts, *removals]
        problems: list[EntryProblem] = []
        for number, change in enumerate(ordered):
            if stop():
                return problems, len(ordered) - number
            try:
                for edit in self._plan(change):
                    carry_out(edit, change)
                    self._completed(edit)
            except CannotWrite as error:
                problems.append(error.problem)
        return problems, 0

    def _plan(self, change: Change) -> list[Edit]:
        """The edits of a change, in order; [] without any. Raises CannotWrite."""
        match change:
            case Put(record):
                return self._plan_put(record)
            case Remove(path):
                return self._plan_remove(path)
            case Move(old, new):
                return self._plan_move(old, new)

    def _completed(self, edit: Edit) -> None:
        """Apply a completed edit."""
        match edit:
            case AddEntry(entry, path):
                self.entries.put(entry)
                if path is not None:
                    self._place(path, entry.key)
            case ModifyEntry(entry, replace):
                merged = {**entry.attributes, **replace}
                attributes = {name: values for name, values in merged.items() if values}
                self.entries.put(Entry(entry.dn, attributes, entry.key))
            case DeleteEntry(entry, path):
                self.entries.discard(entry.key)
                self._places.pop(path, None)
                self._paths.pop(entry.key, None)
            case RenameEntry(entry, _, _, old, new):
                renamed = renamed_entry(edit)
                for key in (entry.key, *(below.key for below in self.entries.below(entry.key))):
                    now = moved_key(key, entry.key, renamed.key)
                    self.moved[now] = self.moved.pop(key, key)
                    path = self._paths.pop(key, None)
                    if path is not None:
                        del self._places[path]
                        self._place(TopicPath(new + path[len(old) :]), now)
                self.entries.rename(entry.key, renamed)

    def _place(self, path: TopicPath, key: Dn) -> None:
        self._places[path] = key
        self._paths[key] = path

    def _plan_put(self, record: TopicRecord) -> list[Edit]:
        entry = self._entry(record.path)
        if entry is None:
            edits, parent = self._plan_ancestors(record.path)
            edits.append(self._add(record.path, record, parent))
            return edits
        return _with_facts(entry, write_facts(record))

    def _plan_remove(self, path: TopicPath) -> list[Edit]:
        entry = self._entry(path)
        if entry is None:
            return []
        if self.entries.children(entry.key):
            return _with_facts(entry, write_facts(None))
        edits: list[Edit] = [DeleteEntry(entry, path)]
        deleted = entry.key
        for above in ancestors(path):
            node_entry = self._entry(above)
            if node_entry is None or self.entries.children(node_entry.key) != {deleted}:
                break
            attributes = node_entry.attributes
            if attributes.get("topicistopic") != (b"FALSE",) or not set(attributes) <= set(NAMES):
                break  # a topic, or a node with attributes of others
            edits.append(DeleteEntry(node_entry, above))
            deleted = node_entry.key
        return edits

    def _plan_move(self, old: TopicPath, new: TopicPath) -> list[Edit]:
        entry = self._entry(old)
        if entry is None or self._entry(new) is not None:
            raise CannotWrite(
                EntryProblem(ProblemKind.CONFLICT, old, f"cannot be moved to {new}: the directory changed", old)
            )
        if fold((write_rdn(old),))[0] != entry.key[0]:
            reason = "its RDN is not derived from its name, so a rename would leave old values behind"
            raise CannotWrite(EntryProblem(ProblemKind.CONFLICT, format_dn(entry.dn), reason, old))
        edits, parent = self._plan_ancestors(new)
        edits.append(RenameEntry(entry, write_rdn(new), parent, old, new))
        return edits

    def _plan_ancestors(self, path: TopicPath) -> tuple[list[Edit], Dn]:
        """Edits that create every node above `path`, and the DN of its parent."""
        edits: list[Edit] = []
        base = self.entries.get(self._base_key)
        if base is None:
            base = write_base(self._base)
            if base is None:
                reason = "the base entry is missing, and only ou=, o= and cn= entries are created automatically: add it"
                raise CannotWrite(EntryProblem(ProblemKind.REFUSED, format_dn(self._base), reason, path))
            edits.append(AddEntry(base, None))
        parent = base.dn
        for above in reversed(tuple(ancestors(path))):
            entry = self._entry(above)
            if entry is None:
                added = self._add(above, None, parent)
                edits.append(added)
                entry = added.entry
            parent = entry.dn
        return edits, parent

    def _add(self, path: TopicPath, record: TopicRecord | None, parent: Dn) -> AddEntry:
        entry = write_entry(path, record, parent)
        if entry.key in self.entries:
            reason = "another entry has this DN and is not this topic"
            raise CannotWrite(EntryProblem(ProblemKind.CONFLICT, format_dn(entry.dn), reason, path))
        return AddEntry(entry, path)

    def _entry(self, path: TopicPath) -> Entry | None:
        key = self._places.get(path)
        return None if key is None else self.entries.get(key)


def _with_facts(entry: Entry, facts: Mapping[str, tuple[bytes, ...]]) -> list[Edit]:
    """The edit after which the entry has these properties; none if it has them."""
    replace = {
        name: facts.get(name, ())
        for name in sorted(FACTS)
        if set(entry.attributes.get(name, ())) != set(facts.get(name, ()))
    }
    return [ModifyEntry(entry, replace)] if replace else []


def renamed_entry(edit: RenameEntry) -> Entry:
    """The entry after a rename that deletes the values of the old RDN."""
    old = set(edit.entry.dn[0])
    attributes = {
        name: others
        for name, values in edit.entry.attributes.items()
        if (others := tuple(v for v in values if (name, v.decode(errors="replace")) not in old))
    }
    for kind, value in edit.rdn:
        attributes[kind] = (value.encode(),)
    return Entry.of((edit.rdn, *edit.parent), attributes)
