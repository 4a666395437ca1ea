"""Queries for dead letters, over the compacted `dead` log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from arborcast.core.eventlog.scan import LogScan
from arborcast.core.security.uris import without_password
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import is_due, time_ms
from arborcast.dispatch.delivery.outcomes import Outcome, failed
from arborcast.dispatch.delivery.settlement import Decision, untried
from arborcast.dispatch.delivery.verdict import Verdict
from arborcast.dispatch.logs import dead_letters, parked
from arborcast.dispatch.logs.attempts import Attempt, AttemptsLog, State
from arborcast.dispatch.logs.dead_letters import DeadLetter
from arborcast.dispatch.logs.parked import DeadLetterLog, Delivery, ParkingLog, Tries
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath

# Letters, and bytes of them: bounds memory, and the work that a crash leaves half done.
_AT_ONCE = 500
_BYTES_AT_ONCE = 16 * 1024 * 1024

_SETTLE_S = 30.0

SETTLED_AFTER_S = 10.0
"""The time for which new letters are not redriven or purged, in seconds. A letter is written before its delivery is
removed from the waiting ones; after a crash in between the delivery is tried again without a redrive."""


def settled(letter: DeadLetter, now_s: float) -> bool:
    """Whether a letter may be redriven or purged; also one in the future, of a clock that was put back since."""
    return is_due(letter.at_ms + int(SETTLED_AFTER_S * 1000), letter.at_ms, int(now_s * 1000))


class DeadLetterAdmin:
    """Redrives or purges dead letters.

    A row in `attempts` is written first, so the audit has it whatever happens next. The letter leaves the `dead` log
    last: a crash in between leaves it there, to be processed again, and loses nothing.

    Used by one thread. Every method raises InfrastructureError if Kafka does not acknowledge in time.
    """

    def __init__(self, kafka: KafkaSettings) -> None:
        self._attempts = AttemptsLog(kafka)
        self._attempts.connect()
        self._parking = ParkingLog(kafka)
        self._dead = DeadLetterLog(kafka)
        self._log = LogScan(parked.with_parked_overhead(kafka), "dead")
        self._read = self._log.ends()
        self._removed: set[bytes] = set()  # since

    def __enter__(self) -> DeadLetterAdmin:
        return self

    def __exit__(self, *_: object) -> None:
        self._attempts.close()
        self._parking.close()
        self._dead.close()
        self._log.close()

    def redrive(self, letters: Iterable[tuple[Delivery, DeadLetter]]) -> int:
        """Park these deliveries again, each at its old place in its lane; returns their number. Letters younger than
        SETTLED_AFTER_S stay; letters that another process has redriven or purged meanwhile are omitted. A crash between
        a letter and its row may leave two letters of a delivery, with different places: the second is only removed.

        The key of a parked record is derived from its letter, so that a repetition after a crash has no effect; it
        differs from the earlier key, so that a late record of the first delivery cannot end it. The attempts are
        counted from zero, and the lifespan begins now: deliveries given up for their age would otherwise be given up at
        once.
        """
        done = 0
        now_s = time.time()
        known: set[tuple[str, str]] = set()
        for some in _chunks(each for each in letters if settled(each[1], now_s)):
            now_ms = time_ms()
            firsts = []
            for each in self._present(some):
                if (name := (each[1].subscription, each[1].notification.id)) not in known:
                    known.add(name)
                    firsts.append(each)
            fresh = [msgspec.structs.replace(letter.notification, accepted_ms=now_ms) for _, letter in firsts]
            for (_, letter), notification in zip(firsts, fresh, strict=True):
                detail = f"redriven after {letter.number} attempts, the last {letter.error or letter.state}"
                self._attempts.add(_row(letter, notification, "parked", failed("redriven", detail), 0, now_ms))
            self._attempts.settle(_SETTLE_S)
            for (delivery, letter), notification in zip(firsts, fresh, strict=True):
                again = Delivery(delivery.subscription, delivery.place._replace(redrive=letter.at_ms))
                self._parking.park(again, notification, Tries())
            self._parking.settle(_SETTLE_S)
            self._forget(some)
            done += len(firsts)
        return done

    def purge(self, letters: Iterable[tuple[Delivery, DeadLetter]], why: str = "its message was purged") -> int:
        """Purge these letters; returns their number. Their deliveries stay dead. Letters that another process has
        redriven or purged meanwhile are omitted."""
        done = 0
        for some in map(self._present, _chunks(letters)):
            now_ms = time_ms()
            for _, letter in some:
                purged = failed("purged", f"{why}; given up with {letter.error or letter.state}: {letter.detail}")
                self._attempts.add(_row(letter, letter.notification, letter.state, purged, letter.number, now_ms))
            self._attempts.settle(_SETTLE_S)
            self._forget(some)
            done += len(some)
        return done

    def _present(self, some: Iterable[tuple[Delivery, DeadLetter]]) -> list[tuple[Delivery, DeadLetter]]:
        """Those that were not removed since this object was made."""
        ends = self._log.ends()
        for record in self._log.read_from(self._read, ends):
            (self._removed.add if record.value is None else self._removed.discard)(record.key)
        self._read = ends
        return [each for each in some if each[0].key() not in self._removed]

    def _forget(self, letters: Iterable[tuple[Delivery, DeadLetter]]) -> None:
        for delivery, _ in letters:
            # After a crash it may also wait: it would be pushed beside the redriven one, or after the purge.
            self._parking.finished(delivery, tried=True)
            self._dead.forget(delivery)
        self._parking.settle(_SETTLE_S)
        self._dead.settle(_SETTLE_S)


def _row(
    letter: DeadLetter, notification: Notification, state: State, why: Outcome, number: int, now_ms: int
) -> Attempt:
    decision = Decision(Verdict(state), Tries(number), why, letter=True)
    return untried(letter.subscription, letter.endpoint, notification, decision, now_ms)


def _chunks(letters: Iterable[tuple[Delivery, DeadLetter]]) -> Iterable[list[tuple[Delivery, DeadLetter]]]:
    some: list[tuple[Delivery, DeadLetter]] = []
    size = 0
    for each in letters:
        some.append(each)
        size += len(each[1].notification.payload)
        if len(some) == _AT_ONCE or size >= _BYTES_AT_ONCE:
            yield some
            some, size = [], 0
    if some:
        yield some


@dataclass(frozen=True)
class LetterConditions:
    """Conditions for dead letters. Empty or None is no condition.

    `reason` is one of the error classes (`client-error`, `lifespan`, ...), a state (`dead`, `expired`), an HTTP status,
    or part of the detail; `since_ms` and `until_ms` bound the time at which the delivery was given up.
    """

    subscription: str = ""
    endpoint: str = ""
    notification: str = ""
    topic: Callable[[TopicPath], bool] = lambda _path: True
    since_ms: int | None = None
    until_ms: int | None = None
    reason: str = ""

    def at(self, endpoint: str) -> bool:
        """Whether this endpoint is selected, also as pages show it."""
        return self.endpoint in ("", endpoint, without_password(endpoint))

    def includes(self, letter: DeadLetter) -> bool:
        return (
            (not self.subscription or letter.subscription == self.subscription)
            and self.at(letter.endpoint)
            and (not self.notification or letter.notification.id == self.notification)
            and (self.since_ms is None or letter.at_ms >= self.since_ms)
            and (self.until_ms is None or letter.at_ms < self.until_ms)
            and (not self.reason or self._has_reason(letter))
            and self.topic(letter.notification.topic)
        )

    def _has_reason(self, letter: DeadLetter) -> bool:
        return self.reason in (letter.error, letter.state, str(letter.status)) or self.reason in letter.detail


def letters(kafka: KafkaSettings, selects: Callable[[DeadLetter], bool]) -> Iterator[tuple[Delivery, DeadLetter]]:
    """The selected letters of the log, by subscription's partition and in the order in which they were given up. Raises
    InfrastructureError, RecordVersionError.

    The log is read twice: first for the last record of each delivery, then for the letters. So memory is a hundred
    bytes for each selected one, however large the messages, and none for the others.
    """
    with LogScan(kafka, "dead") as log:
        beginnings, ends = log.beginnings(), log.ends()
        last_offsets: dict[bytes, int] = {}
        for record in log.read_from(beginnings, ends):
            read = parked.readable_letter(record.key, record.value, (record.partition, record.offset))
            if read is None:
                continue
            _, letter = read
            if letter is not None and selects(letter):
                last_offsets[record.key] = record.offset
            else:
                last_offsets.pop(record.key, None)
        if not last_offsets:
            return
        for record in log.read_from(beginnings, ends):
            # All records of one delivery are in one partition, so its last offset identifies its letter.
            if record.value is not None and last_offsets.get(record.key) == record.offset:
                yield parked.decode_key(record.key)[0], dead_letters.decode(record.value)
