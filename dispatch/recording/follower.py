"""What all have in common who write tables from a log: where they are in it, and what follows when that fails."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence

from core.eventlog.consumer import Replaced
from core.eventlog.follower import Tail
from dispatch.tables.delta_table import DeltaTableWriter

logger = logging.getLogger(__name__)


class Work(ABC):
    """Something that is done again and again."""

    name: str

    @abstractmethod
    def step(self) -> bool:
        """Do a bounded piece; whether there may be more to do at once."""

    def close(self) -> None:  # noqa: B027  # most hold nothing
        """Free what is held."""


class TableFollower(Work):
    """Follows a log, in steps, from where its tables say that they are.

    Nothing that is held in memory outlives a failure, for it may have come between a commit and its answer: the next
    step asks the tables again. A log that was created again is followed from its beginning.
    """

    def __init__(self, log: str, tables: Sequence[DeltaTableWriter]) -> None:
        # The log's name stands for its tables in messages.
        self.name = self._log = log
        self._tables = tables
        self._tail: Tail | None = None

    def step(self) -> bool:
        """Bring the tables up to date with the log, a bounded piece of it; whether there is more to read at once.

        Raises what Kafka and Delta raise; then a later step begins again behind what the tables have.
        """
        try:
            return self._step()
        except BaseException:
            self._forget()
            raise

    def close(self) -> None:
        """Free the connection. What was not committed is read again after the next start."""
        if self._tail is not None:
            self._tail.close()

    @abstractmethod
    def _opened(self) -> Tail:
        """The log behind what the tables have."""

    @abstractmethod
    def _write(self, tail: Tail) -> bool:
        """Read on and write what is due; whether there is more to read at once."""

    @abstractmethod
    def _restart(self) -> None:
        """Have the tables say that they are at the beginning of a log which is not the one that they have."""

    def _forget(self) -> None:
        """Give up what is known of the log and the tables; an heir adds what else it holds."""
        self.close()
        self._tail = None
        for table in self._tables:
            table.reopen()

    def _step(self) -> bool:
        try:
            if self._tail is None:
                self._tail = self._opened()
            return self._write(self._tail)
        except Replaced as error:
            logger.warning("%s; what is written from it goes on with its beginning", error)
        self._forget()
        self._restart()
        return True
