"""Watching over one life of a part, from the moment it is ready: is it asked whether it lives, and does it answer?"""

from __future__ import annotations

import logging
import queue
import threading

from jobs.stack.questions import Question
from topic_model.silence import Silence

logger = logging.getLogger(__name__)

# So many questions in a row must have had no answer. All of them fit into the time after which a part hangs: each has
# a quarter of it, and the first comes a sixth of it after the last answer.
_ASKS = 3
_DEADLINE, _PAUSE = 1 / 4, 1 / 6

# Somebody whose answers are no, at once, is not asked in a loop.
_REPROACH_S = 0.5


class Watch:
    """Asks in a thread of its own, for a question may take its whole deadline; all else is done by its owner's thread.

    `limit_s` of the owner's own time without an answer is too long.
    """

    def __init__(self, name: str, question: Question, limit_s: float, at: float) -> None:
        self._question = question
        self._limit_s = limit_s
        self._silence = Silence(limit_s, at, _ASKS)
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._over = threading.Event()
        self.why = ""
        """What the last question came to; empty when it was answered."""
        threading.Thread(target=self._ask_forever, name=f"watch-{name}", daemon=True).start()

    def look(self, at: float) -> float:
        """For how long it has been silent, 0 while it answers. `at` is the owner's own time."""
        while True:
            try:
                self.why = self._answers.get_nowait()
            except queue.Empty:
                return self._silence.lasts_s(at) if self.why else 0.0
            if self.why:
                self._silence.unanswered()
            else:
                self._silence.answered(at)

    def hangs(self, at: float) -> bool:
        """Whether it has been silent for too long, as of the last look."""
        return self._silence.is_too_long(at)

    def end(self) -> None:
        """Ask no more. Does not wait for the question that is being asked."""
        self._over.set()

    def _ask_forever(self) -> None:
        pause_s = self._limit_s * _PAUSE
        while not self._over.wait(pause_s):
            try:
                why = self._question(self._limit_s * _DEADLINE)
            except Exception as error:
                # We could not ask, which says nothing about the part.
                logger.warning("a part cannot be asked whether it lives: %s", error)
                why = ""
            pause_s = min(_REPROACH_S, self._limit_s * _PAUSE) if why else self._limit_s * _PAUSE
            self._answers.put(why)
