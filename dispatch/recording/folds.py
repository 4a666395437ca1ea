"""A table of states as a fold over a compacted log: merged by key, with the positions in the same commit.

Merging suits these tables because they hold what is, not what was: what waits, what is subscribed. Doing a stretch of
the log again changes nothing, so a crash costs nothing but time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dispatch.recording.changes import Changes
from dispatch.recording.follower import Follower
from dispatch.recording.held import HeldTable, as_progress
from dispatch.recording.tail import Tail
from dispatch.tables import TableSpec
from topic_model.kafka_client import ConsumerRecord
from topic_model.settings import KafkaSettings

# Bounds the driver's memory, and how long a step takes: a merge of so many rows takes a second or two.
_RECORDS_PER_STEP = 20_000


class Fold(Protocol):
    """What a record of the log means for a table."""

    @property
    def spec(self) -> TableSpec:
        """The table."""

    @property
    def writer(self) -> str:
        """Under which name the table says how far it has come: another one for each fold that writes into it."""

    @property
    def patched(self) -> Sequence[str]:
        """Columns that change by themselves; see `HeldTable.merge`."""

    @property
    def guard(self) -> str:
        """When they do."""

    @property
    def kept(self) -> Sequence[str]:
        """Columns that another fold fills; see `HeldTable.merge`."""

    def apply(self, record: ConsumerRecord, changes: Changes) -> None:
        """Note what changes. What cannot be read is logged and left out."""


class FoldedTables(Follower):
    """The tables that follow one log. No commit is made when nothing changed."""

    def __init__(self, kafka: KafkaSettings, log: str, folds: Sequence[tuple[str, Fold]]) -> None:
        """`folds` with the location of their table; of several for one table each is done after those before it."""
        self._kafka = kafka
        self._folds = [(fold, HeldTable(fold.spec, location)) for location, fold in folds]
        super().__init__(log, [table for _, table in self._folds])

    def _opened(self) -> Tail:
        known = [table.positions(fold.writer) for fold, table in self._folds]
        partitions = range(max(map(len, known)))
        # From where the one is that is furthest back: what is applied again changes nothing.
        begin = {each: min(positions.get(each, 0) for positions in known) for each in partitions}
        seen = {each: max(positions.get(each, 0) for positions in known) for each in partitions}
        return Tail(self._kafka, self._log, begin, seen)

    def _write(self, tail: Tail) -> bool:
        records = tail.read(_RECORDS_PER_STEP)
        for fold, table in self._folds:
            progress = as_progress(fold.writer, tail.positions)
            changes = Changes(fold.spec)
            for record in records:
                fold.apply(record, changes)
            if len(changes):
                table.merge(changes.arrow(), progress, fold.patched, fold.guard, fold.kept)
            elif records and not table.positions(fold.writer):
                # So that "nothing yet" and "crashed before the first commit" can be told apart.
                table.extend(fold.spec.arrow([]), progress)
        return len(records) >= _RECORDS_PER_STEP

    def _restart(self) -> None:
        # What is, is what the new log says, and nothing else.
        for fold, table in self._folds:
            beginning = dict.fromkeys(table.positions(fold.writer), 0)
            table.replace(fold.spec.arrow([]), as_progress(fold.writer, beginning))
