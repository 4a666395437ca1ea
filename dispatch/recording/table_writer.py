"""The thread that writes tables beside the queries."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from dispatch.spark.query_supervisor import StopGate

logger = logging.getLogger(__name__)

# However much there is to do, nine tenths of a core are left to those who push.
_SHARE = 10

# After a failure: whatever it was (Kafka away, a full disk), trying all the time does not mend it.
_PAUSE_S = 15.0


class Work(Protocol):
    """Something that is done again and again."""

    @property
    def name(self) -> str: ...

    def step(self) -> bool:
        """Do a bounded piece; whether there may be more to do at once."""

    def close(self) -> None:
        """Free what is held."""


class Recorder:
    """Does each work at its interval until the gate closes; one after another, never two at once.

    What fails is logged when it begins to fail and when it is well again, and is tried again: no table is a reason to
    stop pushing.
    """

    def __init__(
        self, works: Sequence[tuple[Work, float]], gate: StopGate, name: str = "recorder", share: int = _SHARE
    ) -> None:
        """`works` with their intervals in seconds. It works for one part of the time in `share`."""
        self._works = [_Scheduled(work, interval_s, share) for work, interval_s in works]
        self._gate = gate
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Wait for the thread to end, which it does once the gate is closed; whether it did."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while self._works:
                due = min(self._works, key=lambda each: each.due)
                if self._gate.wait_closed(max(due.due - time.monotonic(), 0.0)):
                    return
                due.step()
        finally:
            for each in self._works:
                each.work.close()


class _Scheduled:
    def __init__(self, work: Work, interval_s: float, share: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.work = work
        self.due = clock()
        self._interval_s = interval_s
        self._share = share
        self._clock = clock
        self._failing = False

    def step(self) -> None:
        began = self._clock()
        try:
            more = self.work.step()
        except Exception as error:
            if not self._failing:
                logger.warning("%s is not written for now: %s", self.work.name, error)
            self._failing = True
            self.due = self._clock() + _PAUSE_S
            return
        if self._failing:
            logger.info("%s is written again", self.work.name)
            self._failing = False
        took = self._clock() - began
        pause = took * (self._share - 1)
        self.due = self._clock() + (pause if more else max(self._interval_s, pause))
