"""The routing view of a task in real time, and whether it has reached the position of a notification."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from arborcast.dispatch.matching.bases import SharedBase
from arborcast.topic_model.records.notifications import UNSTAMPED, Notification
from arborcast.topic_model.routing import Found, ViewStep
from arborcast.topic_model.snapshot import Snapshot, SteppedView

logger = logging.getLogger(__name__)

# Wait for the view of a notification, after which the control log is checked.
_MISSED_S = 2.0


class TaskView:
    """The routing view of a task, built from the driver's updates. Used by one thread."""

    def __init__(self, control_end: Callable[[], int], base: SharedBase | None) -> None:
        """`control_end` queries the end of the control log. `base` is that of a worker that cannot open the driver's
        files."""
        self._control_end = control_end
        self._base = base
        self._view: SteppedView | None = None
        self._unstamped = (-1, -1)
        self._missing_since: tuple[int, float] | None = None
        self._replaced_from = -1  # stamps from this one on belong to a control log that was replaced
        self.control = -1
        """The view's position in the control log."""
        self.complete = False
        """Whether the updates since the last base are applied."""

    def begin(self, base: bytes) -> None:
        """Begin again with the base in this file."""
        self.complete = False
        try:
            snapshot = self._base.open() if self._base is not None else Snapshot.open(Path(os.fsdecode(base)))
            self._view = SteppedView(snapshot)
        except FileNotFoundError:
            self._view = None  # a message with the name of a newer base follows

    def apply(self, step: ViewStep) -> None:
        if self._view is not None:
            self._view.apply(step)

    def advance_to(self, control: int) -> bool:
        """Called when all steps to this position of the control log are applied; returns False without a base."""
        if self._view is None:
            return False
        self.control = control
        self.complete = True
        return True

    def of(self, notification: Notification, offset: int, last_offset: int) -> Found | None:
        """The subscriptions of a notification; None until the view covers it."""
        if self._view is None or not self.covers(notification, offset, last_offset):
            return None
        return self._view.of(notification)

    def covers(self, notification: Notification, offset: int, last_offset: int) -> bool:
        """Whether the view can match the notification at this offset: it has reached the notification's stamp, or no
        relevant change lies between. `last_offset` is the offset of the last notification read."""
        stamp = notification.control
        if stamp == UNSTAMPED:
            stamp = self._stamp_for(offset, last_offset)
        elif 0 <= notification.unchanged <= self.control:
            return True
        return stamp <= self.control or self._is_replaced(stamp, offset)

    def _stamp_for(self, offset: int, last_offset: int) -> int:
        """The stamp of a notification without one: its recipients are those at matching, so the view must reach the
        current end of the control log. The end is valid for all notifications read so far."""
        last, end = self._unstamped
        if offset > last:
            self._unstamped = _, end = last_offset, self._control_end()
        return end

    def _is_replaced(self, stamp: int, offset: int) -> bool:
        """Whether the view will never reach this stamp: the control log was created again since."""
        now = time.monotonic()
        if 0 <= self._replaced_from <= stamp:
            return True
        if self._missing_since is None or self._missing_since[0] != offset:
            self._missing_since = (offset, now)
        if now - self._missing_since[1] < _MISSED_S:
            return False
        self._missing_since = (offset, now)
        if stamp <= self._control_end():
            return False
        logger.warning("stamps of notifications are beyond the end of the control log: it was created again")
        self._replaced_from = stamp
        return True
