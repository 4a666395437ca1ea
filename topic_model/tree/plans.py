"""Changes of the topic tree, checked against the current tree and written as control records.

A plan is a list of records to append to the control log; the tree follows the log. A move creates the new topics before
it removes the old ones, so that a subscriber of both misses nothing. A removed topic gets a TopicRemoved, and a
Tombstone for compaction. Every refusal is a TopicError with the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from arborcast.core.errors import TopicError
from arborcast.core.printable import NOT_XML
from arborcast.topic_model.records.control import ControlRecord, Tombstone, TopicRecord, TopicRemoved
from arborcast.topic_model.topics import TopicPath, ancestors, last_step, make_path, parent_of, parse_path, split_path
from arborcast.topic_model.tree.distribution import check_routing
from arborcast.topic_model.tree.tree import TopicTree

MAX_CODE_LENGTH: Final = 256  # a code is a word in an LDAP attribute and a column of a table
MAX_MESSAGE_TYPES: Final = 256
MAX_TOPIC_BYTES: Final = 65_536
"""Of a topic's record, below each `kafka.max_record_bytes` of a gateway: one larger record would stop the sync with the
directory for all topics."""


def plan_create(tree: TopicTree, record: TopicRecord) -> list[ControlRecord]:
    """Add one topic. Its ancestors do not become topics."""
    path = check_record(record).path
    if path in tree:
        raise TopicError(f"the topic {path} exists already")
    _check_parent(tree, path)
    _check_final(tree, record)
    _check_code(tree, record)
    return [record]


def plan_update(tree: TopicTree, record: TopicRecord) -> list[ControlRecord]:
    """Replace the properties of a topic; an empty plan without a change."""
    check_record(record)
    old = _existing(tree, record.path)
    if old.placed and record.code in ("", old.code):
        # An update without a code keeps the generated one.
        record = msgspec.structs.replace(record, code=old.code, placed=True)
    _check_final(tree, record)
    _check_code(tree, record)
    return [] if old == record.facts else [record]


def plan_remove(tree: TopicTree, path: TopicPath, *, recursive: bool = False) -> list[ControlRecord]:
    """Remove a topic, or with `recursive` the whole subtree of a topic or node."""
    _check_node(tree, path)
    if tree.has_children(path) and not recursive:
        raise TopicError(f"there are topics below {path}; remove it recursively or remove those first")
    return _removal(_subtree(tree, path))


Created = Callable[[TopicRecord], bool]
"""Whether an earlier move, which was interrupted, has created this topic."""


def plan_rename(tree: TopicTree, path: TopicPath, name: str, created: Created = lambda _: False) -> list[ControlRecord]:
    """Rename the last step of a topic or node (`b` keeps its namespace, or `{urn:t}b`)."""
    own_namespace = last_step(path).rpartition("}")[0]
    step = name if name.startswith("{") or not own_namespace else f"{own_namespace}}}{name}"
    parent = parent_of(path)
    target = parse_path(step if parent is None else f"{parent}/{step}")
    if parent_of(target) != parent:
        raise TopicError(f"{name[:200]!r} is a path, not a name: move {path} to change its parent")
    return plan_move(tree, path, target, created)


def plan_move(
    tree: TopicTree, path: TopicPath, target: TopicPath, created: Created = lambda _: False
) -> list[ControlRecord]:
    """Move a topic or node with its subtree from `path` to `target`, which must not be below `path`, and must be free,
    or have been `created` with the same properties. Steps below keep their text: a child without an explicit namespace
    gets that of its new parent."""
    _check_node(tree, path)
    target = parse_path(target)
    if target == path:
        raise TopicError(f"{path} cannot be moved to itself")
    if path in ancestors(target):
        raise TopicError(f"{path} cannot be moved below itself, to {target}")
    _check_parent(tree, target)
    old = _subtree(tree, path)
    new: dict[TopicPath, TopicRecord] = {}
    for each in old:
        moved = make_path(split_path(target + each[len(path) :]))
        if moved in new:
            raise TopicError(f"two topics below {path} would both become {moved}")
        new[moved] = without_place(msgspec.structs.replace(_existing(tree, each), path=moved))
    for there in (_existing(tree, each) for each in _subtree(tree, target)):
        if not created(there) or new.pop(there.path, without_place(there)) != without_place(there):
            raise TopicError(f"there is a topic at {target} already, or below it")
    return [*new.values(), *_removal(old)]


def without_place(record: TopicRecord) -> TopicRecord:
    """The record without its generated code, for another place."""
    return msgspec.structs.replace(record, code="", placed=False) if record.placed else record


def check_record(record: TopicRecord) -> TopicRecord:
    """The record. Raises TopicError if its texts cannot be stored or exported."""
    path = record.path
    if parse_path(path) != path:
        raise TopicError(f"the canonical form of {path} is {parse_path(path)}")
    if len(record.code) > MAX_CODE_LENGTH:
        raise TopicError(f"a topic code may be {MAX_CODE_LENGTH} characters long, that of {path} is {len(record.code)}")
    if len(record.message_types) > MAX_MESSAGE_TYPES:
        raise TopicError(f"a topic may have {MAX_MESSAGE_TYPES} message types, {path} has {len(record.message_types)}")
    policy = record.policy
    for text in (record.code, policy.routing, *record.message_types, *policy.publishers):
        if NOT_XML.search(text):  # it could not be exported
            raise TopicError(f"{text[:80]!r}, of topic {path}, has a control character")
    if (size := len(msgspec.json.encode(record))) > MAX_TOPIC_BYTES:
        raise TopicError(
            f"a topic may have {MAX_TOPIC_BYTES} bytes of properties, {path} has {size}: name groups of publishers, "
            "or shorten the message types"
        )
    check_routing(policy.routing)
    return record


def _check_parent(tree: TopicTree, path: TopicPath) -> None:
    for above in ancestors(path):
        record = tree.get(above)
        if record is not None and record.final:
            raise TopicError(f"the topic {above} is final: {path} cannot be below it")


def _check_final(tree: TopicTree, record: TopicRecord) -> None:
    if record.final and tree.has_children(record.path):
        raise TopicError(f"the topic {record.path} cannot be final, there are topics below it")


def _check_code(tree: TopicTree, record: TopicRecord) -> None:
    if record.code:
        for other in tree.paths_with_code(record.code):
            if other != record.path:
                owner = tree.get(other)
                placed = owner is not None and owner.placed
                hint = " as a generated code: set another code there first, or choose another" if placed else ""
                raise TopicError(f"the topic code {record.code!r} belongs to {other} already{hint}")


def _check_node(tree: TopicTree, path: TopicPath) -> None:
    if not tree.is_node(path):
        raise TopicError(f"there is no topic {path}")


def _existing(tree: TopicTree, path: TopicPath) -> TopicRecord:
    record = tree.get(path)
    if record is None:
        raise TopicError(f"there is no topic {path}")
    return record


def _subtree(tree: TopicTree, path: TopicPath) -> list[TopicPath]:
    """The topics of a subtree, parents first, in a deterministic order."""
    below = sorted(tree.descendants(path))
    return [path, *below] if path in tree else below


def _removal(paths: Iterable[TopicPath]) -> list[ControlRecord]:
    deepest_first = list(paths)[::-1]
    removed: list[ControlRecord] = [TopicRemoved(path) for path in deepest_first]
    return removed + [Tombstone.of("topic", path) for path in deepest_first]
