"""The job's heartbeat: as long as all of it comes round, the world outside sees a beat every other second.

It is given by a thread of the driver that asks the JVM, looks whether the redelivery has come round, and watches over
the Python workers. When the driver is stopped, or the JVM does not answer, nobody gives it. Workers that hang are
replaced by this same thread, for which the job need not be started again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from core.liveness import OwnTime, Silence
from dispatch.job.worker_beats import PATIENCE_WITH_TASKS, WorkerBeats

logger = logging.getLogger(__name__)

BEAT_S = 2.0


class Heart:
    """`ask_jvm` returns when the JVM answers, and raises when there is none any more; `rounds` counts those of the
    redelivery. Nothing is given before `beat` is set, which happens when the job is ready."""

    def __init__(
        self, ask_jvm: Callable[[], object], rounds: Callable[[], int], limit_s: float, workers: WorkerBeats | None
    ) -> None:
        """`limit_s` is how long a Python worker may be silent; the redelivery has the patience of a task."""
        self.beat: Callable[[], None] | None = None
        self._ask_jvm = ask_jvm
        self._rounds = rounds
        self._workers = workers
        self._time = OwnTime(2 * BEAT_S)
        self._redelivery = Silence(limit_s * PATIENCE_WITH_TASKS, 0.0)
        self._hangs = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heart", daemon=True)

    def __enter__(self) -> Heart:
        """Begins to look."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Looks no more. Does not wait: the JVM may never answer."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(BEAT_S):
            try:
                self.look(self._time.tick())
            except Exception as error:
                if self._stopping.is_set():
                    return
                # The JVM is gone, which ends this process; or something of ours is wrong, and then we are not well.
                logger.warning("no heartbeat: %s", error)

    def look(self, at: float) -> None:
        """Once round. `at` is our own time."""
        if self._workers is not None:
            self._workers.look(at)
        if self.beat is None:
            self._redelivery.answered(at)  # it has not begun, or reads what is parked
        self._redelivery.heard(self._rounds(), at)
        hangs = self._redelivery.is_too_long(at)
        if hangs and not self._hangs:
            lasts_s = self._redelivery.lasts_s(at)
            logger.error("the redelivery has not come round for %.0f s: no heartbeat until it does", lasts_s)
        self._hangs = hangs
        self._ask_jvm()
        if self.beat is not None and not hangs:
            self.beat()
