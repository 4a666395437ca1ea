"""Three-way reconciliation of the topic tree with its directory. Pure.

The input is three states: the last common state, the directory's current state, and the tree's current state (the
control log). The output is the records to append and the changes to write. A side that differs from the common state
has changed; if both have, the directory takes precedence, since people edit it. After both outputs are written the
sides are equal, and a second run has nothing to do.

The directory can have any content, the log cannot. So an edit that breaks a rule of the tree (a topic below a final
one) is not imported: it is reported, stays in the directory, and is checked again by each run.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from arborcast.core.files import write_atomically
from arborcast.directory.entries.changes import Change, Move, Put, Remove
from arborcast.directory.entries.mapping import EntryProblem, Listing, ProblemKind, canonical
from arborcast.topic_model.records.control import ControlRecord, Tombstone, TopicRecord, TopicRemoved
from arborcast.topic_model.topics import TopicPath, ancestors

_log = logging.getLogger(__name__)

_VERSION = 1


class _State(msgspec.Struct, frozen=True):
    """The last common state of the tree and its directory, in a file that survives restarts.

    Without it a topic added on one side could not be distinguished from a topic removed on the other. If it is lost,
    the topics of both sides stay.
    """

    v: int
    directory: str
    topics: tuple[TopicRecord, ...]
    log: str = ""
    """The id of the control log's Kafka topic; empty from a broker without ids."""


def load_known(path: Path, directory: str, log: str = "") -> dict[TopicPath, TopicRecord]:
    """The saved state for this directory and control log; empty if it is missing, unreadable, or of others."""
    try:
        state = msgspec.json.decode(path.read_bytes(), type=_State)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:  # not JSON, or not UTF-8
        _log.warning("directory.state-lost %s: %s; topics of only one side are copied to the other", path, error)
        return {}
    if state.v != _VERSION or state.directory != directory:
        return {}
    if state.log and log and state.log != log:
        _log.warning("directory.state-lost %s: of another control log; topics of only one side are copied", path)
        return {}
    return {record.path: record for record in state.topics}


def save_known(path: Path, directory: str, topics: Iterable[TopicRecord], log: str = "") -> None:
    """Replace the file atomically. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not durable: it is written often, and after a power failure an older state is sufficient.
    write_atomically(path, msgspec.json.encode(_State(_VERSION, directory, tuple(topics), log)), durable=False)


Records = Mapping[TopicPath, TopicRecord]


@dataclass(frozen=True)
class Plan:
    """The writes that make both sides equal.

    `records` are for the control log, in order. `changes` are for the directory. `agreed` has the changes of the common
    state once the plan is executed (None: no topic).
    """

    records: tuple[ControlRecord, ...] = ()
    changes: tuple[Change, ...] = ()
    agreed: Mapping[TopicPath, TopicRecord | None] = field(default_factory=dict)
    problems: tuple[EntryProblem, ...] = ()


# A difference that a person may make while no engine watches, in topics.
_MANY = 100


def lost(known: Records, directory: Listing) -> Collection[TopicPath]:
    """The known topics that the directory has lost: they are written to it, not removed from the tree.

    A missing base entry, or few topics after a time without a watch, is mostly a new, restored or incomplete server (or
    a lost file), not a deliberate removal. To remove all topics, or more than half of many, remove them through the
    engine, or while it watches.
    """
    if not directory.initialised:
        return tuple(known)
    there = len(directory.entries) + len(directory.held)  # the number: a renamed tree is complete
    if not directory.fresh or (there and len(known) - there <= max(_MANY, len(known) // 2)):
        return ()
    return [path for path in known if path not in directory.entries and path not in directory.held]


def reconcile(
    known: Records,
    directory: Listing,
    tree: Records,
    *,
    only: Collection[TopicPath] | None = None,
    moves: bool = True,
) -> Plan:
    """The plan for these three states.

    `only` are the topics that may have changed, for speed; None: all. `moves` False plans no Move, for a server that
    cannot move subtrees: puts and removals have the same result.
    """
    merge = _Merge(known, directory, tree)
    paths: Iterable[TopicPath] = only if only is not None else {*known, *directory.entries, *tree}
    for path in paths:
        merge.decide(path)
    return merge.plan(moves=moves)


def _lacks_only_its_code(theirs: TopicRecord | None, ours: TopicRecord | None) -> bool:
    """Whether a crashed process has written the topic without its generated code."""
    if theirs is None or theirs.code or ours is None or not ours.placed:
        return False
    return msgspec.structs.replace(theirs, code=ours.code) == canonical(ours)


class _Merge:
    """One run: decisions by topic first, then the rules between topics."""

    def __init__(self, known: Records, directory: Listing, tree: Records) -> None:
        self._known = known
        self._directory = directory
        self._tree = tree
        # The target state of each side; None: no topic.
        self._to_tree: dict[TopicPath, TopicRecord | None] = {}
        self._to_directory: dict[TopicPath, TopicRecord | None] = {}
        self._agreed: dict[TopicPath, TopicRecord | None] = {}
        self._problems: list[EntryProblem] = []
        self._clashing = {each.path for each in directory.problems if each.kind is ProblemKind.DUPLICATE_CODE}

    def decide(self, path: TopicPath) -> None:
        if path in self._directory.held:
            self._decide_held(path)
            return
        known, raw = self._known.get(path), self._tree.get(path)
        entry = self._directory.entries.get(path)
        theirs = entry.record if entry is not None else None
        ours = canonical(raw) if raw is not None else None
        if theirs == ours:
            if known != ours:
                self._agreed[path] = ours
        elif theirs == known or (known is None and _lacks_only_its_code(theirs, raw)):
            self._to_directory[path] = self._agreed[path] = ours
        else:
            self._to_tree[path] = self._agreed[path] = theirs
            if theirs is not None and raw is not None and raw.placed and theirs.code == raw.code:
                self._to_tree[path] = msgspec.structs.replace(theirs, placed=True)

    def _decide_held(self, path: TopicPath) -> None:
        """Leave an invalid entry unchanged, except for a generated code that another client has used for another
        topic, and for a code that the engine gave to another topic: that write was interrupted."""
        ours, known = self._tree.get(path), self._known.get(path)
        if ours is None or path not in self._clashing:
            return
        if ours.placed or (known is not None and known.code != ours.code):
            self._to_directory[path] = self._agreed[path] = canonical(ours)

    def plan(self, *, moves: bool) -> Plan:
        self._refuse_below_final()
        self._leave_places()
        self._settle_codes()
        changes = self._moves() if moves else []
        for path, record in self._to_directory.items():
            changes.append(Remove(path) if record is None else Put(record))
        added = [record for record in self._to_tree.values() if record is not None]
        removed = [path for path, record in self._to_tree.items() if record is None]
        removed.sort(key=lambda path: (-path.count("/"), path))
        # Additions before removals, so that a subscriber of both paths of a moved topic misses nothing.
        added.sort(key=lambda record: (record.path.count("/"), record.path))
        records: list[ControlRecord] = [*added, *map(TopicRemoved, removed)]
        records.extend(Tombstone.of("topic", path) for path in removed)
        return Plan(tuple(records), tuple(changes), self._agreed, tuple(self._problems))

    def _refuse_below_final(self) -> None:
        """Refuse new topics below a final one, and `final` for a topic with topics below it."""
        news = sorted((p for p, r in self._to_tree.items() if r is not None), key=lambda path: path.count("/"))
        parents: set[TopicPath] | None = None
        for path in news:
            record = self._to_tree[path]
            above = next((a for a in ancestors(path) if self._is_final(a)), None)
            if above is not None and path not in self._tree:
                self._refuse(path, f"topic {above} is final: it cannot have topics below it")
            elif record is not None and record.final and not ((before := self._tree.get(path)) and before.final):
                if parents is None:
                    parents = {a for p in self._tree if self._to_tree.get(p, p) is not None for a in ancestors(p)}
                if path in parents:
                    self._refuse(path, "it cannot be final, there are topics below it")

    def _is_final(self, path: TopicPath) -> bool:
        record = self._to_tree[path] if path in self._to_tree else self._tree.get(path)
        return record is not None and record.final

    def _refuse(self, path: TopicPath, reason: str) -> None:
        dn = self._directory.entries[path].dn
        self._problems.append(EntryProblem(ProblemKind.BELOW_FINAL, dn, reason, path))
        del self._to_tree[path]
        del self._agreed[path]

    def _leave_places(self) -> None:
        """Remove the generated code of a topic that was moved in the directory."""
        removed = (self._tree.get(path) for path, record in self._to_tree.items() if record is None)
        codes = {each.code for each in removed if each is not None and each.placed}
        for path, record in self._to_tree.items() if codes else ():
            if record is not None and path not in self._tree and record.code in codes:
                self._to_tree[path] = msgspec.structs.replace(record, code="")

    def _settle_codes(self) -> None:
        """Of two topics to which the sides have given the same code, the directory's keeps it."""
        new_codes = {
            r.code for r in (*self._to_tree.values(), *self._to_directory.values()) if r is not None and r.code
        }
        if not new_codes:
            return
        owners: dict[str, TopicPath] = {}
        for path, entry in self._directory.entries.items():
            if entry.record.code in new_codes and path not in self._to_directory:
                owners[entry.record.code] = path
        for path, ours in sorted(self._to_directory.items()):
            if ours is None or not ours.code or owners.setdefault(ours.code, path) == path:
                continue
            owner = owners[ours.code]
            reason = f"topicCode {ours.code!r} belongs to topic {owner} in the directory; removed from this one"
            self._problems.append(EntryProblem(ProblemKind.DUPLICATE_CODE, path, reason, path))
            stripped = msgspec.structs.replace(ours, code="")
            self._to_tree[path] = self._to_directory[path] = self._agreed[path] = stripped

    def _moves(self) -> list[Change]:
        """Moves of unchanged subtrees, which replace the changes of their topics.

        A rename keeps other attributes of the entries (for instance a description), which new entries would lose.
        """
        removed = {p: self._directory.entries[p].record for p, r in self._to_directory.items() if r is None}
        new = {p: r for p, r in self._to_directory.items() if r is not None and p not in self._directory.places}
        if not removed or not new:
            return []
        old_shapes, new_shapes = self._shapes(removed), self._shapes(new)
        pairs = [
            (olds[0], news[0])
            for shape, olds in old_shapes.items()
            if len(olds) == 1 == len(news := new_shapes.get(shape, []))
        ]
        # An entry with others below that stay, or come, is not moved.
        kept = self._with_others_below({old for old, _ in pairs}, removed)
        kept.update(above for _, target in pairs for above in ancestors(target))
        pairs = [pair for pair in pairs if pair[0] not in kept and self._directory.entries[pair[0]].plain]
        moved = {path for pair in pairs for path in pair}
        for path in [p for p in self._to_directory if not moved.isdisjoint((p, *ancestors(p)))]:
            del self._to_directory[path]
        return [Move(old, target) for old, target in pairs]

    def _with_others_below(self, tops: set[TopicPath], removed: Records) -> set[TopicPath]:
        """Of these topics the ones above an entry that is not removed."""
        return {
            above
            for path in (self._directory.places if tops else ())
            if path in self._directory.held or (path in self._directory.entries and path not in removed)
            for above in ancestors(path)
            if above in tops
        }

    @staticmethod
    def _shapes(records: Records) -> dict[tuple[object, ...], list[TopicPath]]:
        """The topmost of these topics, by the content of their subtrees without their own names."""
        subtrees: dict[TopicPath, list[TopicRecord]] = {}
        for path in sorted(records):
            top = next((a for a in reversed(tuple(ancestors(path))) if a in records), path)
            subtrees.setdefault(top, []).append(records[path])
        shapes: dict[tuple[object, ...], list[TopicPath]] = {}
        for top, below in subtrees.items():
            content = ((r.path[len(top) :], msgspec.structs.replace(r, path=TopicPath(""))) for r in below)
            shapes.setdefault(tuple(content), []).append(top)
        return shapes
