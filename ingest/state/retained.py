"""The current message of each topic that retains one: read from the compacted `retained` log when it is asked for.

In memory there is only where each topic's last record lies, so payloads cost nothing until somebody wants them. Every
answer is given by the log as it ends at that moment: a message whose publisher was answered is found, whichever worker
accepted it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from core.errors import InfrastructureError
from core.eventlog.client import RETRY_AFTER_S
from core.eventlog.follower import LogFollower
from core.eventlog.scan import LogReader
from core.eventlog.settings import KafkaSettings
from topic_model.records import notifications
from topic_model.records.notifications import Notification
from topic_model.topics import TopicPath

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

# A long log is read in pieces, so that others get their turn.
_PIECE_S = 1.0
_RETRY_S = 0.5

# A record may be compacted away between finding and reading it; then a newer one is there.
_ATTEMPTS = 3


class RetainedMessages:
    """Current messages, for the event loop; one thread does the reading."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._timeout_s = kafka.request_timeout_s
        self._offsets: dict[TopicPath, int] = {}
        self._follower: LogFollower[tuple[TopicPath, bool]] = LogFollower(
            kafka, "retained", lambda key, value: (TopicPath(key.decode()), value is not None), self._take
        )
        self._reader = LogReader(kafka, "retained")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="retained")

    async def warm(self) -> None:
        """Read the log to its end once, so that the first who asks need not wait for that. Never raises."""
        while True:
            try:
                await self._run(lambda: self._follower.read_to_end(_PIECE_S))
            except InfrastructureError as error:
                logger.debug("the current messages are not all found yet: %s", error)
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def topics(self, matches: Callable[[TopicPath], bool]) -> list[TopicPath]:
        """The topics with a current message that `matches` accepts; it is called in another thread.

        Raises InfrastructureError.
        """
        return await self._run(lambda: self._matching(matches))

    async def latest(self, paths: Sequence[TopicPath]) -> list[Notification]:
        """The current messages of these topics, in the order of their acceptance; topics without one are left out.

        All are in memory at once: ask for few at a time. Raises InfrastructureError.
        """
        return await self._run(lambda: self._latest(paths))

    def close(self) -> None:
        """Let go of the log."""
        self._thread.submit(self._follower.close)
        self._thread.submit(self._reader.close)
        self._thread.shutdown(wait=False)

    async def _run(self, work: Callable[[], _T]) -> _T:
        # There is one thread: while Kafka is away, who waits for it must not wait for all who came before as well.
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except TimeoutError:
            raise InfrastructureError("the current messages could not be read in time", RETRY_AFTER_S) from None

    def _take(self, record: tuple[TopicPath, bool], offset: int) -> None:
        path, present = record
        if present:
            self._offsets[path] = offset
        else:
            self._offsets.pop(path, None)

    def _matching(self, matches: Callable[[TopicPath], bool]) -> list[TopicPath]:
        self._follower.read_to_end(self._timeout_s)
        return [path for path in self._offsets if matches(path)]

    def _latest(self, paths: Sequence[TopicPath]) -> list[Notification]:
        for _ in range(_ATTEMPTS):
            self._follower.read_to_end(self._timeout_s)
            wanted = sorted({self._offsets[path] for path in paths if path in self._offsets})
            found = self._reader.read(wanted) if wanted else {}
            if len(found) == len(wanted):
                return [notifications.decode(found[offset]) for offset in wanted]
        raise InfrastructureError("the current messages change faster than they can be read", RETRY_AFTER_S)
