"""A table of states as a fold over a compacted log: merged by key, with the positions in the same commit.

Merging suits these tables because they hold what is, not what was: what waits, what is subscribed. Doing a stretch of
the log again changes nothing, so a crash costs nothing but time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from dispatch.recording.changes import Changes
from dispatch.recording.held import HeldTable, as_progress
from dispatch.recording.tail import Replaced, Tail
from dispatch.tables import TableSpec
from topic_model.kafka_client import ConsumerRecord
from topic_model.settings import KafkaSettings

logger = logging.getLogger(__name__)

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


class FoldedTables:
    """The tables that follow one log."""

    def __init__(self, kafka: KafkaSettings, log: str, folds: Sequence[tuple[str, Fold]]) -> None:
        """`folds` with the location of their table; of several for one table each is done after those before it."""
        self._kafka = kafka
        self._log = log
        self._folds = [(fold, HeldTable(fold.spec, location)) for location, fold in folds]
        self._tail: Tail | None = None

    @property
    def name(self) -> str:
        """For the log and for messages."""
        return self._log

    def step(self) -> bool:
        """Bring the tables up to date with the log, a bounded piece of it; whether there may be more.

        No commit is made when nothing changed. Raises what Kafka and Delta raise; then a later step begins again at
        what the tables have.
        """
        try:
            return self._step()
        except Replaced as error:
            logger.warning("%s; its tables are written anew", error)
            for fold, table in self._folds:
                beginning = dict.fromkeys(table.positions(fold.writer), 0)
                table.replace(fold.spec.arrow([]), as_progress(fold.writer, beginning))
            self._begin_anew()
            return True
        except BaseException:
            self._begin_anew()
            raise

    def close(self) -> None:
        """Free the connection."""
        if self._tail is not None:
            self._tail.close()

    def _step(self) -> bool:
        if self._tail is None:
            known = [table.positions(fold.writer) for fold, table in self._folds]
            partitions = range(max(map(len, known)))
            # From where the one is that is furthest back: what is applied again changes nothing.
            begin = {each: min(positions.get(each, 0) for positions in known) for each in partitions}
            seen = {each: max(positions.get(each, 0) for positions in known) for each in partitions}
            self._tail = Tail(self._kafka, self._log, begin, seen)
        tail = self._tail
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

    def _begin_anew(self) -> None:
        self.close()
        self._tail = None
        for _, table in self._folds:
            table.reopen()
