"""Operators: commands of `arborcast` that repeat deliveries, each in a separate process."""

from __future__ import annotations

from collections.abc import Callable

from arborcast.admin import control_log, replay
from arborcast.admin.filters import TopicTest
from arborcast.core.errors import InfrastructureError
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import time_ms
from arborcast.dispatch.logs.dead_letters import DeadLetter
from arborcast.dispatch.operations.dead_letters import DeadLetterAdmin, letters
from arborcast.dispatch.operations.replay import ReplayRefused
from arborcast.dispatch.operations.views import ViewFilter
from arborcast.dispatch.operations.waiting import Waiting
from arborcast.topic_model.subscriptions import queue_topic
from tests.world.kernel import Host, Kernel, Process

# More notifications than this are not replayed.
_MOST = 200


class Operators:
    """Begins commands. Of two at the same time, the second is omitted: two redrives of a letter push it twice."""

    def __init__(self, kernel: Kernel, kafka: KafkaSettings) -> None:
        self._kernel, self._kafka = kernel, kafka
        self._host = Host("console")
        self._commands = 0
        self.process: Process | None = None
        self.left = 0  # letters before the last redrive

    def _begin(self, name: str, work: Callable[[], object]) -> None:
        if self.process is not None and self.process.alive:
            return
        process = self.process = self._kernel.process(name, self._host)

        def run() -> None:
            try:
                work()
            except (InfrastructureError, ReplayRefused):
                self._kernel.count("commands of operators that failed")
            self._kernel.call(0.0, process.kill)

        self._commands += 1
        self._kernel.spawn(process, run, name)

    def redrive(self) -> None:
        """Redrive the dead letters of all subscriptions."""

        def work() -> None:
            table = control_log.read_table(self._kafka)

            def exists(letter: DeadLetter) -> bool:
                return table.get(letter.subscription) is not None or queue_topic(letter.subscription) is not None

            self.left = sum(1 for _ in letters(self._kafka, exists))
            with DeadLetterAdmin(self._kafka) as admin:
                done = admin.redrive(letters(self._kafka, exists))
            self._kernel.count("redriven letters", done)

        self._begin("redrive", work)

    def replay(self, subscription: str, seconds: float) -> None:
        """Replay the notifications of the last seconds."""

        def work() -> None:
            since_ms = time_ms() - int(seconds * 1000)
            planned = replay.plan(self._kafka, subscription, since_ms, None, TopicTest(), _MOST)
            planned.replay.id = f"{self._commands:012x}"
            self._kernel.count("replayed notifications", planned.replay.send(planned.places))

        self._begin("replay", work)

    def retry(self, subscription: str) -> None:
        """Request attempts of the waiting deliveries of a subscription."""

        def work() -> None:
            done = Waiting(self._kafka).request_attempts(ViewFilter(subscription=subscription))
            self._kernel.count("requested attempts", done)

        self._begin("waiting retry", work)
