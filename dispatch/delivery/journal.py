"""The journal of deliveries: rows to `attempts`, deliveries that wait to `parked`, those that were given up to `dead`.

A row of a message that is kept elsewhere (parked, dead) is written after the record that keeps it: a repeated batch
leaves out deliveries that have a row, so the other way round a crash could lose the message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from arborcast.core.eventlog.writers import DurableWriter
from arborcast.dispatch.delivery.settlement import Decision
from arborcast.dispatch.delivery.verdict import without_letter
from arborcast.dispatch.logs.attempts import BEHIND_S, Attempt, AttemptsLog
from arborcast.dispatch.logs.dead_letters import letter_of
from arborcast.dispatch.logs.parked import DeadLetterLog, Delivery, ParkingLog, Tries
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.results import Result

# Rows that wait for the record that keeps their message: half a kilobyte each.
_MOST_HELD_BACK = 5_000

# How soon it is looked again whether Kafka has the record that a row waits for.
RELEASE_S = 0.02


class _HeldBack(NamedTuple):
    """A row, and the record that it follows, by log and number. `took_ms` has the duration of a delivery that is this
    record. Without a row: the next one follows this record, too."""

    row: Attempt | None
    log: DurableWriter
    number: int
    took_ms: Callable[[int], float] | None


class JournalMark(NamedTuple):
    """A moment of a journal: how many rows had been held back so far, and, once all of these are released, the number
    of the last record of attempts."""

    rows: int
    number: int | None = None


class Journal:
    """Used by one thread. Every failure raises InfrastructureError; then any record may be in its log, or not.

    `timeout_s` is how long it may take until Kafka has something.
    """

    def __init__(
        self,
        attempts: AttemptsLog,
        dead: DeadLetterLog,
        parking: ParkingLog,
        timeout_s: float,
        others: Sequence[DurableWriter] = (),
    ) -> None:
        """`others` are further logs whose records precede their rows."""
        self._attempts = attempts
        self._dead = dead
        self._parking = parking
        self._preceding: list[DurableWriter] = [dead, parking, *others]
        self._timeout_s = timeout_s
        self._held_back: deque[_HeldBack] = deque()
        self._released = 0
        self._mark: JournalMark | None = None

    def connect(self) -> None:
        """Connect to all logs now. With the first record Kafka may be away, and pushes under way would be lost with the
        error. Raises InfrastructureError."""
        for log in (*self._preceding, self._attempts):
            log.connect()

    def write(
        self,
        decision: Decision,
        row: Attempt,
        notification: Notification,
        delivery: Callable[[str], Delivery],
        in_turn: bool = False,
    ) -> None:
        """Write a decision, with its row. `delivery` makes the name of the delivery where a log needs it; `in_turn`:
        that of the subscription."""
        if row.state == "parked":
            self.park(delivery(row.subscription), notification, decision.tries, row, in_turn)
        elif decision.letter:
            self.write_dead_letter(delivery(row.subscription), notification, row)
        else:
            self.record(without_letter(row))

    def record(self, attempt: Attempt) -> None:
        """A push had an outcome, or a delivery ended without one."""
        self._attempts.add(attempt)

    def park(
        self, delivery: Delivery, notification: Notification, tries: Tries, attempt: Attempt, in_turn: bool = False
    ) -> None:
        """Park a delivery; returns its row. `in_turn`: with its lane."""
        self._hold_back(attempt, self._parking, self._parking.park(delivery, notification, tries, in_turn))

    def answered(self, result: Result) -> None:
        """A push has its answer, whose deliveries were parked before."""
        self._parking.answered(result)

    def write_dead_letter(self, delivery: Delivery, notification: Notification, attempt: Attempt) -> None:
        """Give a delivery up; returns its row."""
        number = self._dead.write_dead_letter(delivery, letter_of(attempt, notification))
        self._hold_back(attempt, self._dead, number)

    def write_due(self) -> bool:
        """Write the rows that are due, without waiting; False while Kafka is late with acknowledgements."""
        self._release()
        self._attempts.write_due()
        late = bool(self._held_back) and self._held_back[0].log.is_behind(BEHIND_S)
        return not (late or self._attempts.is_behind(BEHIND_S))

    def due_s(self) -> float:
        """In how many seconds `write_due` has something to write; infinite while nothing waits to be written."""
        return RELEASE_S if self._held_back else self._attempts.due_s()

    def mark(self) -> None:
        """From now on `passed` reports whether everything up to this call is written."""
        self._mark = JournalMark(self._released + len(self._held_back))

    def passed(self) -> bool:
        """Whether everything before the mark is written. Waits for nothing; `catch_up` sends late records again."""
        self._release()
        if self._mark is None:
            return False
        if self._mark.number is None:
            if self._released < self._mark.rows:
                return False
            # The last of these rows, and all that needed no other record, are taken in.
            self._mark = JournalMark(self._mark.rows, self._attempts.write())
        return self._attempts.has_all(self._mark.number or 0)

    def catch_up(self) -> None:
        """Return when everything is written."""
        self._settle_preceding()
        self._attempts.settle(self._timeout_s)

    def close(self) -> None:
        """Drop the connections and all records without acknowledgement."""
        self._held_back.clear()
        for log in (*self._preceding, self._attempts):
            log.close()

    def _hold_back(
        self, row: Attempt | None, log: DurableWriter, number: int, took_ms: Callable[[int], float] | None = None
    ) -> None:
        self._held_back.append(_HeldBack(row, log, number, took_ms))
        if len(self._held_back) >= _MOST_HELD_BACK:
            self._settle_preceding()

    def _settle_preceding(self) -> None:
        for log in self._preceding:
            log.settle(self._timeout_s)
        self._release()

    def _release(self) -> None:
        while self._held_back and self._held_back[0].log.has(self._held_back[0].number):
            row, _, number, took_ms = self._held_back.popleft()
            if row is not None:
                timed = row if took_ms is None else msgspec.structs.replace(row, duration_ms=took_ms(number))
                self._attempts.add(timed)
            self._released += 1
