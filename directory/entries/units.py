"""Import of topic trees of organizational units, as of HPwsn and related systems. Pure.

    ou=all_test,dc=wsn,dc=com                             the base: not a topic, or a given one
    ou=alarm1,ou=alarm,ou=all_test,dc=wsn,dc=com          alarm/alarm1 below the base; a description of one word is
                                                          its code

Such a tree is imported once and not synchronised, since it has no attributes of Arborcast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from arborcast.core.errors import TopicError
from arborcast.directory.entries.dn import Dn, fold, format_dn, is_below
from arborcast.directory.entries.entries import Entry
from arborcast.directory.entries.mapping import EntryProblem, ProblemKind
from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.topics import Step, TopicPath, make_path, split_path
from arborcast.topic_model.tree.plans import check_record


@dataclass(frozen=True)
class Units:
    """The result of reading a tree of units. `topics` are ordered by depth; `others` counts other entries and entries
    below them. `left_out` has the attributes of topics that are not imported, such as policies of the other system,
    with the number of entries."""

    topics: tuple[TopicRecord, ...]
    problems: tuple[EntryProblem, ...]
    others: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)


# The name, the classes, and operational attributes.
_TAKEN = frozenset(
    {"ou", "objectclass", "createtimestamp", "creatorsname", "entrycsn", "entrydn", "entryuuid", "hassubordinates"}
    | {"modifiersname", "modifytimestamp", "structuralobjectclass", "subschemasubentry"}
)


def read_units(entries: Iterable[Entry], base: Dn, root: TopicPath | None) -> Units:
    """The topics of the units below `base`; `root` is the topic of the base itself. Never raises for invalid entries:
    an invalid topic is a problem, with its subtree."""
    start = fold(base)
    steps: dict[Dn, tuple[Step, ...] | None] = {start: tuple(split_path(root)) if root is not None else ()}
    topics: dict[TopicPath, TopicRecord] = {}
    codes: dict[str, TopicPath] = {}
    problems: list[EntryProblem] = []
    others = 0
    left_out: Counter[str] = Counter()
    for entry in sorted(entries, key=lambda entry: len(entry.key)):
        name = ""
        if is_below(entry.key, start):
            name = _name_of(entry)
            if not name or entry.key[1:] not in steps:
                others += 1  # other entries are not descended into
                continue
        elif entry.key != start or root is None:
            continue
        above = steps[entry.key[1:] if name else start]
        steps[entry.key] = None
        if above is None:
            problems.append(EntryProblem(ProblemKind.ORPHAN, format_dn(entry.dn), "the entry above is not a topic"))
            continue
        own = (*above, ("" if not above else above[-1][0], name)) if name else above
        try:
            path = make_path(own)
            record = check_record(TopicRecord(path, code=_code_of(entry)))
        except TopicError as error:
            problems.append(EntryProblem(ProblemKind.ILLEGAL_NAME, format_dn(entry.dn), str(error)))
            continue
        if path in topics:
            reason = f"topic {path} has another entry already"
            problems.append(EntryProblem(ProblemKind.DUPLICATE_TOPIC, format_dn(entry.dn), reason, path))
            continue
        steps[entry.key] = own
        if record.code and codes.setdefault(record.code, path) != path:
            reason = f"its code {record.code!r} belongs to topic {codes[record.code]}: imported without it"
            problems.append(EntryProblem(ProblemKind.DUPLICATE_CODE, format_dn(entry.dn), reason, path))
            record = TopicRecord(path)
        topics[path] = record
        left_out.update(entry.attributes.keys() - _TAKEN - ({"description"} if _code_of(entry) else set()))
    return Units(tuple(topics.values()), tuple(problems), others, left_out)


def _name_of(entry: Entry) -> str:
    """The name of the unit in the entry's RDN, trimmed as by old clients; empty for none."""
    if entry.has_class("alias") or entry.has_class("referral"):
        return ""
    return next((value.strip() for kind, value in entry.dn[0] if kind == "ou"), "")


def _code_of(entry: Entry) -> str:
    """The code, which old systems store in the description."""
    words = (entry.text("description") or "").split()
    return words[0] if len(words) == 1 else ""
