"""Listings from sets of entries: entries, their topics, and problems. Pure.

The tree of entries below the base is the tree of topics. An entry that cannot be a topic is skipped with an
EntryProblem; the rest is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from arborcast.core.errors import TopicError
from arborcast.directory.entries.dn import Dn, fold, format_dn, is_below
from arborcast.directory.entries.entries import Entry, EntrySet
from arborcast.directory.entries.mapping import (
    EntryProblem,
    Listing,
    ProblemKind,
    Skip,
    TopicEntry,
    read_record,
    read_steps,
    write_rdn,
    wrong_routing,
)
from arborcast.topic_model.topics import Step, TopicPath, make_path


def read_listing(entries: EntrySet, base: Dn) -> Listing:
    """All topics below `base`; never raises for invalid entries."""
    return ListingReader(base).read(entries)


@dataclass(frozen=True, slots=True)
class _Reading:
    """The result of reading one entry. `steps` None: it is not in the tree. An attribute with a problem is ignored."""

    entry: Entry
    above: tuple[Step, ...] | None
    steps: tuple[Step, ...] | None
    path: TopicPath | None
    topic: TopicEntry | None
    problem: EntryProblem | None


class ListingReader:
    """Reads listings of one base repeatedly, in one thread at a time. It caches the reading of each entry, so an edit
    in a large tree costs a comparison per entry and one reading."""

    def __init__(self, base: Dn) -> None:
        self._base = fold(base)
        self._readings: dict[Dn, _Reading] = {}

    def read(self, entries: EntrySet, *, fresh: bool = False, also: tuple[EntryProblem, ...] = ()) -> Listing:
        """All topics of these entries; never raises for invalid ones. `also` are problems to list first."""
        readings = self._read_all(entries)
        places: dict[TopicPath, Dn] = {}
        topics: dict[TopicPath, TopicEntry] = {}
        problems = list(also)
        held: set[TopicPath] = set()
        for key, reading in readings.items():
            if reading.problem is not None:
                problems.append(reading.problem)
            if reading.path is None:
                continue
            places[reading.path] = key
            if reading.topic is not None:
                topics[reading.path] = reading.topic
            elif reading.problem is not None:
                held.add(reading.path)
        for duplicate in self._duplicate_codes(entries, readings):
            problems.append(duplicate)
            if duplicate.path is not None:
                del topics[duplicate.path]
                held.add(duplicate.path)
        return Listing(topics, tuple(problems), frozenset(held), places, self._base in entries, fresh)

    def _read_all(self, entries: EntrySet) -> dict[Dn, _Reading]:
        """The reading of each entry below the base; parents first, otherwise in the directory's order."""
        below = [entry for entry in entries if is_below(entry.key, self._base)]
        below.sort(key=lambda entry: len(entry.key))
        steps: dict[Dn, tuple[Step, ...] | None] = {self._base: ()}
        cached, self._readings = self._readings, {}
        taken: set[TopicPath] = set()
        for entry in below:
            above = steps.get(entry.key[1:])
            reading = cached.get(entry.key)
            if reading is None or reading.above is not above or reading.entry != entry:
                reading = _read(entry, above)
            if reading.path is not None and reading.path in taken:
                # With `above` None it is read again next time: it is valid once the other entry is removed.
                reason = f"topic {reading.path} has another entry already"
                problem = EntryProblem(ProblemKind.DUPLICATE_TOPIC, format_dn(entry.dn), reason, reading.path)
                reading = _Reading(entry, None, None, None, None, problem)
            elif reading.path is not None:
                taken.add(reading.path)
            self._readings[entry.key] = reading
            steps[entry.key] = reading.steps
        return self._readings

    @staticmethod
    def _duplicate_codes(entries: EntrySet, readings: Mapping[Dn, _Reading]) -> Iterator[EntryProblem]:
        # In the directory's order (servers list older entries first), not by depth: the later entry is the duplicate.
        owners: dict[str, TopicPath] = {}
        for entry in entries:
            reading = readings.get(entry.key)
            if reading is None or reading.topic is None or not reading.topic.record.code:
                continue
            record = reading.topic.record
            owner = owners.setdefault(record.code, record.path)
            if owner != record.path:
                reason = f"topicCode {record.code!r} belongs to topic {owner}"
                yield EntryProblem(ProblemKind.DUPLICATE_CODE, format_dn(entry.dn), reason, record.path)


def _read(entry: Entry, above: tuple[Step, ...] | None) -> _Reading:
    steps: tuple[Step, ...] | None = None
    path: TopicPath | None = None
    try:
        steps = read_steps(entry, above)
        path = make_path(steps)
        record = read_record(entry, path)
    except (Skip, TopicError) as error:
        kind = error.kind if isinstance(error, Skip) else ProblemKind.ILLEGAL_NAME
        if path is None:
            steps, path = _place_by_rdn(entry, above, kind)
        problem = EntryProblem(kind, format_dn(entry.dn), str(error), path)
        return _Reading(entry, above, steps, path, None, problem)
    topic = None if record is None else TopicEntry(record, entry.dn, entry.key[0] == fold((write_rdn(path),))[0])
    wrong = "" if record is None else wrong_routing(entry)
    ignored = EntryProblem(ProblemKind.BAD_VALUE, format_dn(entry.dn), wrong, path) if wrong else None
    return _Reading(entry, above, steps, path, topic, ignored)


def _place_by_rdn(
    entry: Entry, above: tuple[Step, ...] | None, kind: ProblemKind
) -> tuple[tuple[Step, ...] | None, TopicPath | None]:
    """The place of an entry with a wrong class or name: a mistake in a file must not remove a topic with all below."""
    names = dict(entry.dn[0])
    if above is None or kind is ProblemKind.ALIAS or "topicname" not in names:
        return None, None
    steps = (*above, (names.get("topicnamespace", above[-1][0] if above else ""), names["topicname"]))
    try:
        return steps, make_path(steps)
    except TopicError:
        return None, None
