"""What an operator does with dead letters: send them again, or throw them away.

Either is written down in `attempts` first, so that the audit knows of it whatever happens next. A letter leaves the
`dead` log last: a crash in between leaves it there, to be done again, and loses nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import islice
from types import TracebackType

import msgspec

from dispatch.attempts import Attempt, ErrorClass, State
from dispatch.attempts_log import AttemptsLog
from dispatch.redelivery.dead_letters import DeadLetter
from dispatch.redelivery.parked import Delivery, Tries
from dispatch.redelivery.parking import DeadLetterLog, ParkingLog
from dispatch.redelivery.settling import NO_BATCH
from dispatch.wall_clock import has_come
from topic_model.settings import KafkaSettings

# Bounds memory, and what a crash in between leaves half done.
_AT_ONCE = 500

SETTLED_AFTER_S = 10.0
"""A letter is written before its delivery is taken out of what waits. After a crash in between the delivery is tried
again by itself, so letters are left alone for so long."""


def settled(letter: DeadLetter, now_s: float) -> bool:
    """Whether a letter may be sent again by now; also one that a clock has dated ahead that was put back since."""
    return has_come(letter.at_ms + int(SETTLED_AFTER_S * 1000), letter.at_ms, int(now_s * 1000))


class DeadLetterDesk:
    """Used by one thread. Everything raises InfrastructureError when Kafka does not take it within `timeout_s`."""

    def __init__(self, kafka: KafkaSettings, timeout_s: float = 30.0, now: Callable[[], float] = time.time) -> None:
        self._timeout_s = timeout_s
        self._now = now
        self._attempts = AttemptsLog(kafka)
        self._attempts.connect()
        self._parking = ParkingLog(kafka)
        self._dead = DeadLetterLog(kafka)

    def __enter__(self) -> DeadLetterDesk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._attempts.close()
        self._parking.close()
        self._dead.close()

    def redrive(self, letters: Iterable[tuple[Delivery, DeadLetter]]) -> int:
        """Park these deliveries anew, each at its old place in its lane; how many. Letters younger than
        SETTLED_AFTER_S stay.

        The name under which one is parked follows from its letter, so that doing it again after a crash changes
        nothing, and differs from the one before, so that nothing that was on its way to the log then can end it.

        Their tries are counted from none again, and their lifespan begins now: else what was given up for its age
        would be so at once.
        """
        done = 0
        now_s = self._now()
        for some in _chunks(each for each in letters if settled(each[1], now_s)):
            now_ms = int(self._now() * 1000)
            for _, letter in some:
                detail = f"redriven after {letter.number} attempts, the last {letter.error or letter.state}"
                self._attempts.add(_row(letter, "parked", "redriven", detail, 0, now_ms, now_ms))
            self._attempts.settle(self._timeout_s)
            for delivery, letter in some:
                fresh = msgspec.structs.replace(letter.notification, accepted_ms=now_ms)
                again = Delivery(delivery.subscription, delivery.place._replace(redrive=letter.at_ms))
                self._parking.park(again, fresh, Tries())
            self._parking.settle(self._timeout_s)
            self._forget(some)
            done += len(some)
        return done

    def purge(self, letters: Iterable[tuple[Delivery, DeadLetter]]) -> int:
        """Throw these letters away; how many. Their deliveries stay dead."""
        done = 0
        for some in _chunks(letters):
            now_ms = int(self._now() * 1000)
            for _, letter in some:
                detail = f"its message was thrown away; given up with {letter.error or letter.state}: {letter.detail}"
                accepted_ms = letter.notification.accepted_ms
                self._attempts.add(_row(letter, letter.state, "purged", detail, letter.number, accepted_ms, now_ms))
            self._attempts.settle(self._timeout_s)
            self._forget(some)
            done += len(some)
        return done

    def _forget(self, letters: Iterable[tuple[Delivery, DeadLetter]]) -> None:
        for delivery, _ in letters:
            self._dead.forget(delivery)
        self._dead.settle(self._timeout_s)


def _row(
    letter: DeadLetter, state: State, error: ErrorClass, detail: str, number: int, accepted_ms: int, now_ms: int
) -> Attempt:
    return Attempt(
        notification=letter.notification.id,
        subscription=letter.subscription,
        topic=letter.notification.topic,
        endpoint=letter.endpoint,
        number=number,
        push="",
        state=state,
        accepted_ms=accepted_ms,
        started_ms=now_ms,
        duration_ms=0.0,
        error=error,
        detail=detail[:500],
        batch=NO_BATCH,
    )


def _chunks(letters: Iterable[tuple[Delivery, DeadLetter]]) -> Iterable[list[tuple[Delivery, DeadLetter]]]:
    iterator = iter(letters)
    while some := list(islice(iterator, _AT_ONCE)):
        yield some
