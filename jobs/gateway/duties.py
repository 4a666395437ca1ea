"""What must be done once, however many gateways there are: done by the one that holds the lease.

Ending what has expired and asking publishers for what is wanted are tasks, begun with the lease and cancelled without
it; for the moment in which two processes believe to have it they do no harm twice. The directory's sync, which must not
run twice, looks at the lease before each of its runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from jobs.gateway.lease_keeper import LeaseKeeper
from topic_model.directory.sync import DirectorySync
from topic_model.settings import KafkaSettings

Work = Callable[[], Coroutine[Any, Any, None]]


class Duties:
    """`work` makes the tasks, by name. Made and used on the event loop. `failed` is called with what ended a task."""

    def __init__(
        self,
        kafka: KafkaSettings,
        name: str,
        work: Mapping[str, Work],
        sync: DirectorySync | None,
        failed: Callable[[Exception], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._work = work
        self._sync = sync
        self._failed = failed
        self._tasks: list[asyncio.Task[None]] = []
        self._synced = False
        self._closing = False
        self._keeper = LeaseKeeper(kafka, name, self._changed)

    @property
    def ours(self) -> bool:
        """Whether they are done by this process now."""
        return self._keeper.holds

    def start(self) -> None:
        """Begin to try for the lease."""
        self._keeper.start()

    def cancel(self) -> None:
        """End the tasks; none begins any more."""
        self._closing = True
        self._end_tasks()

    def stop(self) -> None:
        """Let go of the lease. Waits for Kafka a moment: not for the event loop's thread."""
        self._keeper.stop()

    def _changed(self, holds: bool) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._switch, holds)

    def _switch(self, holds: bool) -> None:
        self._end_tasks()
        if self._sync is not None:
            if not holds:
                self._sync.pause()
            elif self._synced:
                self._sync.resume()
            elif not self._closing:
                self._sync.allow_while(lambda: self._keeper.holds)
                self._sync.start()
                self._synced = True
        if holds and not self._closing:
            for name, make in self._work.items():
                task = self._loop.create_task(make(), name=name)
                task.add_done_callback(self._ended)
                self._tasks.append(task)

    def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error if isinstance(error, Exception) else RuntimeError(repr(error)))
