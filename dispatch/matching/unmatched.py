"""The acceptance position, in the control log, of the oldest unmatched notification: earlier changes can be
removed."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping

from arborcast.core.errors import ArborcastError
from arborcast.core.eventlog.scan import LogScan
from arborcast.core.settings import KafkaSettings
from arborcast.core.threads import start_thread
from arborcast.core.wall_clock import time_ms
from arborcast.topic_model.records.notifications import UNSTAMPED, notification_in

logger = logging.getLogger(__name__)

# Maximum time of a notification from its stamp to the log, or of one gateway's view behind another's.
_TRANSIT_MS = 10_000


class Unmatched:
    """`settled` returns the positions of the batches: by partition the next offset."""

    def __init__(
        self,
        kafka: KafkaSettings,
        settled: Callable[[], Mapping[int, int]],
        transit_ms: int = _TRANSIT_MS,
    ) -> None:
        self._kafka = kafka
        self._settled = settled
        self._transit_ms = transit_ms
        self._thread: threading.Thread | None = None
        self._found: int | None = None

    def oldest(self) -> int:
        """The position. Raises InfrastructureError, RecordVersionError."""
        settled, since_ms, oldest = self._settled(), time_ms(), sys.maxsize
        with LogScan(self._kafka, "notifications") as log:
            for record in log.first_behind({each: settled.get(each, 0) for each in log.partitions()}):
                since_ms = min(since_ms, record.timestamp)
                notification = notification_in(record)
                if notification is not None and notification.control != UNSTAMPED:
                    oldest = min(oldest, notification.control)
        with LogScan(self._kafka, "control") as control:
            (position,) = control.at(since_ms - self._transit_ms).values()
        return min(oldest, position)

    def start(self) -> None:
        """Begin to determine the position, in a thread: no batch waits for it. No effect while that is in progress."""
        if self._thread is None:
            self._thread = start_thread("oldest-unmatched", self._determine)

    def take(self) -> int | None:
        """The position determined since the last call, None without one."""
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread, found, self._found = None, self._found, None
        return found

    def _determine(self) -> None:
        try:
            self._found = self.oldest()
        except ArborcastError as error:
            # Superfluous history stays until the next time.
            logger.debug("the oldest unmatched notification cannot be determined: %s", error)
