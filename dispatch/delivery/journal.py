"""The journal of deliveries: rows to `attempts`, pending deliveries to `parked`, given-up deliveries to `dead`.

If another log (parked, dead) has the message, its record is written before the row: a repeated batch skips deliveries
with a row, so in the other order a crash could lose the message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from arborcast.core.eventlog.writers import DurableWriter
from arborcast.dispatch.delivery.settlement import Decision
from arborcast.dispatch.logs.attempts import BEHIND_S, Attempt, AttemptsLog
from arborcast.dispatch.logs.dead_letters import letter_of
from arborcast.dispatch.logs.parked import DeadLetterLog, Delivery, ParkingLog, Tries
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.results import Result

# Rows that wait for the record of their message: half a kilobyte each.
_MOST_DEFERRED = 5_000

# Interval of the check whether Kafka has acknowledged the record that a row waits for.
RELEASE_S = 0.02


class _DeferredRow(NamedTuple):
    """A row, and the record before it, by log and number. `took_ms` returns the duration if the delivery is that
    record. Without a row, the next row waits for this record, too."""

    row: Attempt | None
    log: DurableWriter
    number: int
    took_ms: Callable[[int], float] | None


class Journal:
    """Used by one thread. Every failure raises InfrastructureError; any record may then be in its log, or not.

    `timeout_s` limits the wait for Kafka's acknowledgements.
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
        self._deferred: deque[_DeferredRow] = deque()
        self._released = 0
        self._marked: int | None = None  # the number of rows deferred before the mark
        self._marked_record: int | None = None  # after their release: the number of the last record of attempts

    def connect(self) -> None:
        """Connect to all logs now: at the first record Kafka may be unavailable, and the error would lose the pushes in
        flight. Raises InfrastructureError."""
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
        """Write a decision, with its row. `delivery` makes the delivery of a subscription if a log needs it; `in_turn`
        as for `park`."""
        if row.state == "parked":
            self.park(delivery(row.subscription), notification, decision.tries, row, in_turn)
        elif decision.letter:
            self.write_dead_letter(delivery(row.subscription), notification, row)
        else:
            self.record(row)

    def record(self, attempt: Attempt) -> None:
        """Add the row of a push, or of a delivery that ended without one."""
        self._attempts.add(attempt)

    def park(
        self, delivery: Delivery, notification: Notification, tries: Tries, attempt: Attempt, in_turn: bool = False
    ) -> None:
        """Park a delivery; its row follows the record. `in_turn`: with its lane."""
        self._defer(attempt, self._parking, self._parking.park(delivery, notification, tries, in_turn))

    def answered(self, result: Result) -> None:
        """Add the answer to a push whose deliveries are parked."""
        self._parking.answered(result)

    def still_in_flight(self, delivery: Delivery, tries: Tries) -> None:
        """The push of a parked delivery is answered later than expected."""
        self._parking.tried(delivery, tries)

    def write_dead_letter(self, delivery: Delivery, notification: Notification, attempt: Attempt) -> None:
        """Write a dead letter; its row follows the record."""
        number = self._dead.write_dead_letter(delivery, letter_of(attempt, notification))
        self._defer(attempt, self._dead, number)

    def write_due(self) -> bool:
        """Write the rows that are due, without waiting. Returns False while Kafka's acknowledgements are late."""
        self._release()
        self._attempts.write_due()
        # The parking log also for results, which have no rows.
        logs = [self._attempts, self._parking, *(each.log for each in islice(self._deferred, 1))]
        return not any(log.is_behind(BEHIND_S) for log in logs)

    def due_s(self) -> float:
        """Seconds until `write_due` has something to write; infinite if nothing waits."""
        return RELEASE_S if self._deferred else self._attempts.due_s()

    def mark(self) -> None:
        """Set the mark for `passed`."""
        self._marked, self._marked_record = self._released + len(self._deferred), None

    def passed(self) -> bool:
        """Whether everything before the mark is written. Does not wait; `catch_up` sends late records again."""
        self._release()
        if self._marked is None or self._released < self._marked:
            return False
        if self._marked_record is None:
            # All of these rows, and all rows that needed no other record, are added.
            self._marked_record = self._attempts.write()
        return self._attempts.has_all(self._marked_record)

    def catch_up(self) -> None:
        """Wait until everything is written."""
        self._settle_preceding()
        self._attempts.settle(self._timeout_s)

    def close(self) -> None:
        """Close the connections, and drop all unacknowledged records."""
        self._deferred.clear()
        for log in (*self._preceding, self._attempts):
            log.close()

    def _defer(
        self, row: Attempt | None, log: DurableWriter, number: int, took_ms: Callable[[int], float] | None = None
    ) -> None:
        self._deferred.append(_DeferredRow(row, log, number, took_ms))
        if len(self._deferred) >= _MOST_DEFERRED:
            self._settle_preceding()

    def _settle_preceding(self) -> None:
        for log in self._preceding:
            log.settle(self._timeout_s)
        self._release()

    def _release(self) -> None:
        while self._deferred and self._deferred[0].log.has(self._deferred[0].number):
            row, _, number, took_ms = self._deferred.popleft()
            if row is not None:
                timed = row if took_ms is None else msgspec.structs.replace(row, duration_ms=took_ms(number))
                self._attempts.add(timed)
            self._released += 1
