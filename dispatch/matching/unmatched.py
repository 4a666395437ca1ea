"""The acceptance position, in the control log, of the oldest unmatched notification: earlier changes can be
forgotten."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping

from arborcast.core.errors import ArborcastError
from arborcast.core.eventlog.scan import LogScan, OffsetRange
from arborcast.core.settings import KafkaSettings
from arborcast.core.threads import start_thread
from arborcast.core.wall_clock import time_ms
from arborcast.topic_model.records.notifications import UNSTAMPED, notification_in

logger = logging.getLogger(__name__)

# Maximum time of a notification from its stamp to the log, or of one gateway's view behind another's.
_ON_THE_WAY_MS = 10_000


class Unmatched:
    """`settled` are the positions of the batches: by partition the next offset; None if unknown."""

    def __init__(
        self,
        kafka: KafkaSettings,
        settled: Callable[[], Mapping[int, int] | None],
        on_the_way_ms: int = _ON_THE_WAY_MS,
    ) -> None:
        self._kafka = kafka
        self._settled = settled
        self._on_the_way_ms = on_the_way_ms
        self._thread: threading.Thread | None = None
        self._found: int | None = None

    def oldest(self) -> int | None:
        """The position; None when it is not known. Raises InfrastructureError, RecordVersionError."""
        settled = self._settled()
        if settled is None:
            return None
        since_ms, oldest = time_ms(), sys.maxsize
        with LogScan(self._kafka, "notifications") as log:
            begins, ends = log.beginnings(), log.ends()
            for partition, end in ends.items():
                first = max(settled.get(partition, 0), begins[partition])
                for record in log.read({partition: OffsetRange(first, min(first + 1, end))}):
                    since_ms = min(since_ms, record.timestamp)
                    notification = notification_in(record)
                    if notification is not None and notification.control != UNSTAMPED:
                        oldest = min(oldest, notification.control)
        with LogScan(self._kafka, "control") as control:
            (position,) = control.at(since_ms - self._on_the_way_ms).values()
        return min(oldest, position)

    def look(self) -> None:
        """Begin to find out, in a thread: no batch waits for it. Nothing when that is under way."""
        if self._thread is None:
            self._thread = start_thread("oldest-unmatched", self._look)

    def seen(self) -> int | None:
        """The result of a look, once."""
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread, found, self._found = None, self._found, None
        return found

    def _look(self) -> None:
        try:
            self._found = self.oldest()
        except ArborcastError as error:
            # Superfluous history stays until the next look.
            logger.debug("the oldest waiting notification cannot be determined: %s", error)
