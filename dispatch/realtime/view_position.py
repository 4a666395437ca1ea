"""Whether the routing view has come far enough to say who gets a notification."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from arborcast.topic_model.records.notifications import UNSTAMPED, Notification

logger = logging.getLogger(__name__)

# A notification whose view does not come: after this it is looked whether there is one.
_MISSED_S = 2.0


class ViewPosition:
    """How far the view of a task has read the control log, and where notifications were stamped. Used by one thread."""

    def __init__(self, control_end: Callable[[], int]) -> None:
        """`control_end` says where the control log ends now."""
        self._control_end = control_end
        self._unstamped = (-1, -1)
        self._waits_for: tuple[int, float] | None = None
        self._beyond = -1  # stamps from here on are of a control log that is no more
        self.control = -1
        """How far the view has come."""

    def covers(self, notification: Notification, offset: int, last_offset: int) -> bool:
        """Whether the view can say who gets the notification at this offset: it has come to its stamp, or nothing that
        may concern it has changed from here to there. `last_offset` is that of the last one which is here."""
        stamp = notification.control
        if stamp == UNSTAMPED:
            stamp = self._stamp_for(offset, last_offset)
        elif 0 <= notification.unchanged <= self.control:
            return True
        return stamp <= self.control or self._is_beyond(stamp, offset)

    def _stamp_for(self, offset: int, last_offset: int) -> int:
        """For a notification without a stamp, which belongs to those who are there when it is matched: the view must
        have come to where the control log ends now, and that holds for all that is here."""
        last, end = self._unstamped
        if offset > last:
            self._unstamped = _, end = last_offset, self._control_end()
        return end

    def _is_beyond(self, stamp: int, offset: int) -> bool:
        """Whether the view will never come to where this was stamped: the control log was made anew since."""
        now = time.monotonic()
        if 0 <= self._beyond <= stamp:
            return True
        if self._waits_for is None or self._waits_for[0] != offset:
            self._waits_for = (offset, now)
        if now - self._waits_for[1] < _MISSED_S:
            return False
        self._waits_for = (offset, now)
        if stamp <= self._control_end():
            return False
        logger.warning("notifications are stamped with positions that the control log does not have: it is another one")
        self._beyond = stamp
        return True
