"""Where in the control log the oldest notification was accepted that no batch has matched yet: what changed before that
position need not be remembered."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping

from dispatch.audit.balance import Stretch
from dispatch.audit.reading import LogReading, notification_in
from topic_model.errors import InfrastructureError
from topic_model.notifications import UNSTAMPED
from topic_model.settings import KafkaSettings

logger = logging.getLogger(__name__)

# What was stamped may not have come into its log yet, and one gateway's view may be behind another's.
_ON_THE_WAY_MS = 10_000

# How many notifications may be damaged, or without a stamp, before we give up.
_MOST_READ = 100


class Unmatched:
    """`settled` says what the batches are through with: by partition the offset behind it; None when nobody knows."""

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
        with LogReading(self._kafka, "control") as control:
            (oldest,) = control.at(int(time.time() * 1000) - self._on_the_way_ms).values()
        with LogReading(self._kafka, "notifications") as log:
            begins, ends = log.beginnings(), log.ends()
            for partition, end in ends.items():
                first = max(settled.get(partition, 0), begins[partition])
                if first < end:
                    stamp = _first_stamp(log, partition, first, end)
                    if stamp is None:
                        return None
                    oldest = min(oldest, stamp)
        return oldest

    def look(self) -> None:
        """Begin to find out, in a thread: no batch waits for it. Nothing when that is under way."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="oldest-unmatched", daemon=True)
            self._thread.start()

    def seen(self) -> int | None:
        """What a look has found, once."""
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread, found, self._found = None, self._found, None
        return found

    def _look(self) -> None:
        try:
            self._found = self.oldest()
        except InfrastructureError as error:
            # What need not be remembered is remembered until the next look.
            logger.debug("it is not known which notification is the oldest that waits: %s", error)


def _first_stamp(log: LogReading, partition: int, first: int, end: int) -> int | None:
    """That of the first notification which has one; beyond all positions when none has."""
    for record in log.read({partition: Stretch(first, min(end, first + _MOST_READ))}):
        notification = notification_in(record)
        if notification is not None and notification.control != UNSTAMPED:
            return notification.control
    return None if end > first + _MOST_READ else sys.maxsize
