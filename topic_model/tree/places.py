"""Codes from places: `1.4.A` is the tenth topic below the fourth below the first.

Each step of a path has an ordinal among its siblings, in base 36, and a topic's code consists of the ordinals of its
steps. Codes are stable: removed siblings leave gaps, and no code is reused. Each node with topics below it therefore
has a record (`TopicPlaces`) with its own place and the last ordinal assigned below; the code itself is in the topic's
record.

One process at a time assigns codes. If a topic changes or is removed while its code is being appended, the code's
record would undo that change, since records are complete states. The process detects this when it reads the record back
and repeats the change. (After a crash within these milliseconds the change is lost.)
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from itertools import islice

import msgspec

from arborcast.topic_model.records.control import ControlRecord, Tombstone, TopicPlaces, TopicRecord, TopicRemoved
from arborcast.topic_model.topics import TopicPath, ancestors, parent_of
from arborcast.topic_model.tree.plans import MAX_CODE_LENGTH
from arborcast.topic_model.tree.tree import TopicTree

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_TOP = TopicPath("")

# Maximum number of codes and of nodes checked by one plan: after a start all are new, and planning must not block other
# work.
_CODES_PER_PLAN = 5_000


def ordinal(number: int) -> str:
    """A number from 1 in base 36."""
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits


class Places:
    """Assigned places and topics that need a code: a fold over the control log, beside the tree."""

    def __init__(self) -> None:
        self._nodes: dict[TopicPath, TopicPlaces] = {}
        # Former codes, restored when another process rewrites a topic's record without its code.
        self._former_codes: dict[TopicPath, str] = {}
        self._waiting: dict[TopicPath, None] = {}
        # By topic and by node, since a process that does not plan collects them too.
        self._new_codes: dict[TopicPath, str] = {}
        self._emptied: set[TopicPath] = set()  # nodes that may be without topics
        # Codes being appended, and the records they undo (None: the topic's end).
        self._in_flight: dict[TopicPath, str] = {}
        self._overwritten: dict[TopicPath, TopicRecord | None] = {}
        self._to_repeat: list[ControlRecord] = []
        self._last_repeated: list[ControlRecord] = []

    @property
    def idle(self) -> bool:
        """Whether `plan` has nothing to do."""
        return not (self._waiting or self._new_codes or self._emptied or self._to_repeat)

    def apply(self, record: ControlRecord) -> None:
        match record:
            case TopicRecord():
                self._apply_topic(record)
            case TopicRemoved(path=path):
                self._apply_end(path)
            case TopicPlaces(path=path):
                self._nodes[path] = record
                if path != _TOP:
                    self._emptied.add(path)
            case Tombstone(subject=("topic", name)):
                self._apply_end(TopicPath(name))
            case Tombstone(subject=("places", name)):
                path = TopicPath(name)
                self._nodes.pop(path, None)
                self._emptied.discard(path)

    def _apply_topic(self, record: TopicRecord) -> None:
        path = record.path
        self._check_own_record(record)
        if not record.code:
            self._waiting[path] = None
            return
        self._waiting.pop(path, None)
        self._new_codes[path] = record.code
        if record.placed:
            self._former_codes[path] = record.code
        else:
            self._former_codes.pop(path, None)

    def _check_own_record(self, record: TopicRecord) -> None:
        path = record.path
        if path not in self._in_flight:
            return
        if not (record.placed and record.code == self._in_flight[path]):
            self._overwritten[path] = record
            return
        del self._in_flight[path]
        if path in self._overwritten:
            overwritten = self._overwritten.pop(path)
            if overwritten is None:
                self._to_repeat += [TopicRemoved(path), Tombstone.of("topic", path)]
            elif overwritten.code:
                self._to_repeat.append(overwritten)
            else:
                self._to_repeat.append(msgspec.structs.replace(overwritten, code=record.code, placed=True))

    def _apply_end(self, path: TopicPath) -> None:
        self._waiting.pop(path, None)
        self._former_codes.pop(path, None)
        self._new_codes.pop(path, None)
        self._emptied.update(each for each in (path, *ancestors(path)) if each in self._nodes)
        if path in self._in_flight:
            self._overwritten[path] = None

    def plan(self, tree: TopicTree, limit: int) -> list[ControlRecord]:
        """The records that assign codes to at most this number of topics. `tree` must be at the current position. The
        plan counts as sent. After an empty list there may be more work: see `idle`."""
        self._last_repeated, self._to_repeat = self._to_repeat, []
        if self._last_repeated:
            return self._last_repeated
        self._find_contested(tree)
        chosen = sorted(islice(self._waiting, limit), key=lambda path: (path.count("/"), path))
        assignment = _Assignment(tree, self._nodes, self._former_codes)
        topics: list[ControlRecord] = []
        for path in chosen:
            del self._waiting[path]
            known = tree.get(path)
            if known is not None and len(code := assignment.code_for(path)) <= MAX_CODE_LENGTH:
                prefixes = tree.prefixes.complete(path)
                topics.append(msgspec.structs.replace(known, code=code, placed=True, prefixes=prefixes))
                self._in_flight[path] = code
                self._overwritten.pop(path, None)
        changed = assignment.changed
        # Ordinals before codes: a crash in between leaves a gap and reuses none.
        return [*map(changed.__getitem__, sorted(changed)), *topics, *self._forget_nodes(tree, changed)]

    def return_plan(self, records: Iterable[ControlRecord]) -> None:
        """Plan these records of the last plan again, since they may not have been appended."""
        if self._last_repeated:
            self._to_repeat = [*self._last_repeated, *self._to_repeat]
            return
        for record in records:
            if isinstance(record, TopicRecord):
                self._in_flight.pop(record.path, None)
                self._waiting[record.path] = None

    def _find_contested(self, tree: TopicTree) -> None:
        """Find topics whose generated code another topic has, and plan new codes. An explicit code takes precedence; of
        several generated ones the smallest path keeps it."""
        for _ in range(min(_CODES_PER_PLAN, len(self._new_codes))):
            owners = tree.paths_with_code(self._new_codes.popitem()[1])
            if len(owners) < 2:
                continue
            placed = [path for path in owners if (known := tree.get(path)) is not None and known.placed]
            for path in placed[1:] if len(placed) == len(owners) else placed:
                self._former_codes.pop(path, None)
                self._waiting[path] = None

    def _forget_nodes(self, tree: TopicTree, changed: Container[TopicPath]) -> list[ControlRecord]:
        """Nulls for nodes without topics below. Their ordinals are not reused, so later topics below them get other
        codes."""
        nodes = sorted(self._emptied.pop() for _ in range(min(_CODES_PER_PLAN, len(self._emptied))))
        return [Tombstone.of("places", path) for path in nodes if not tree.is_node(path) and path not in changed]


class _Assignment:
    """Codes assigned in one plan, before the tree has them."""

    def __init__(
        self, tree: TopicTree, nodes: dict[TopicPath, TopicPlaces], former_codes: dict[TopicPath, str]
    ) -> None:
        self._tree = tree
        self._nodes = nodes
        self._former_codes = former_codes
        self.changed: dict[TopicPath, TopicPlaces] = {}
        """The changed nodes, with new ordinals."""
        self._codes: dict[TopicPath, str] = {}
        self._taken: set[str] = set()

    def code_for(self, path: TopicPath) -> str:
        """The code of a topic without one: its former code, the place of its node, or a new one."""
        before, node = self._former_codes.get(path), self._node_at(path)
        if before is not None and self._is_free(before, path):
            code = before
        elif node is not None and not node.used and self._is_free(node.place, path):
            code = node.place
            self.changed[path] = msgspec.structs.replace(node, used=True)
        else:
            code = self._new_place(path)
            if node is not None:
                # Topics below keep their codes; later ones are below the new place.
                self.changed[path] = TopicPlaces(path, code, node.last, used=True)
        self._codes[path] = code
        self._taken.add(code)
        return code

    def _node_at(self, path: TopicPath) -> TopicPlaces | None:
        return self.changed.get(path) or self._nodes.get(path)

    def _is_free(self, code: str, path: TopicPath) -> bool:
        return code not in self._taken and not any(owner != path for owner in self._tree.paths_with_code(code))

    def _node(self, path: TopicPath) -> TopicPlaces:
        """The node that assigns ordinals below this path."""
        known = self._node_at(path)
        if known is not None:
            return known
        if path == _TOP:
            return TopicPlaces(_TOP)
        topic = self._tree.get(path)
        place = self._codes.get(path) or (topic.code if topic is not None and topic.placed else "")
        return TopicPlaces(path, place or self._new_place(path), used=bool(place))

    def _new_place(self, path: TopicPath) -> str:
        above = self._node(parent_of(path) or _TOP)
        last = above.last
        while True:
            last += 1
            place = f"{above.place}.{ordinal(last)}" if above.place else ordinal(last)
            if self._is_free(place, path):
                break
        self.changed[above.path] = msgspec.structs.replace(above, last=last)
        self._taken.add(place)
        return place
