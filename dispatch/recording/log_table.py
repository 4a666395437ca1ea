"""A table that a query writes from a log, and how far."""

from __future__ import annotations

import pyarrow as pa

from dispatch.recording.held import HeldTable, as_progress
from dispatch.recording.unread import further, unread


class LogTable:
    """A table that a log is written to, and how far."""

    def __init__(self, table: HeldTable, log: str) -> None:
        self.held = table
        self._log = log

    def missing(self, logged: pa.Table, writer: str, batch: int) -> pa.Table:
        """Those of a batch's records (columns `partition` and `offset` among others) that the table does not have."""
        reached = self.reached()
        if reached is not None:
            return unread(logged, reached)
        done = self.held.progress(writer)
        return logged.slice(0, 0) if done is not None and done >= batch else logged

    def progress(self, logged: pa.Table, writer: str, batch: int) -> dict[str, int]:
        """How far it is with these records, for the commit that adds their rows."""
        reached = self.reached()
        return {writer: batch, **({} if reached is None else as_progress(self._log, further(logged, reached)))}

    def reached(self) -> dict[int, int] | None:
        """The offset of the first record that the table does not have, by partition; None when it does not say, because
        an Arborcast wrote it that went by the numbers of batches."""
        return self.held.positions(self._log) or ({} if self.held.open().version() == 0 else None)

    def begin_anew(self) -> None:
        """The log is another one: have all of it from its beginning, beside what is there."""
        beginning = dict.fromkeys(self.held.positions(self._log), 0)
        self.held.extend(self.held.spec.arrow([]), as_progress(self._log, beginning))
