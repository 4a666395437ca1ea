"""A view that lives as long as its base: it begins with a snapshot and goes on with the steps that the table sends."""

from __future__ import annotations

from topic_model.records.notifications import UNSTAMPED, Notification
from topic_model.routing.history import Found, History, Recipients
from topic_model.routing.members import Answer
from topic_model.routing.steps import ViewStep
from topic_model.snapshot.base import Snapshot
from topic_model.snapshot.view import SnapshotView
from topic_model.subscriptions import Subscription
from topic_model.topics import TopicPath


class SteppedView:
    """Answers what the table's `match` and `recipients` did at the same position. One thread at a time.

    What it keeps is bounded by the base, by what is live, and by what the table's own history has.
    """

    def __init__(self, snapshot: Snapshot, remembered_answers: int = 100_000) -> None:
        """To be asked when the steps of the opening have been applied."""
        self.position = UNSTAMPED
        """The position of the control log that it has come to."""
        self._base = snapshot.base
        self._view = SnapshotView(snapshot, remembered_answers=remembered_answers)
        self._pieces: list[ViewStep] = []
        self._history = History()
        # Of the subscriptions that the history has something of: where they changed last, and those that are there.
        self._last: dict[str, int] = {}
        self._now: dict[str, Subscription] = {}
        self._recipients = self._recipients_of_now()

    def apply(self, step: ViewStep) -> None:
        """Take the next step. One that has others behind it that belong to it counts when the last of them is there.

        Raises ValueError for a step from another base: the view has to be made anew from that one.
        """
        if step.base != self._base:
            raise ValueError(f"the step is for snapshot {step.base}, this view began with {self._base}")
        self._pieces.append(step)
        if step.control is None:
            return
        changed = False
        for each in self._pieces:
            if each.overlay.size or each.reselected:
                self._view.change(each.overlay, each.reselected)
                changed = True
            changed |= self._remember(each)
        self._pieces.clear()
        self.position = step.control
        if changed:
            self._recipients = self._recipients_of_now()

    def match(self, path: TopicPath) -> Answer:
        """The subscriptions that a notification on this topic goes to."""
        return self._view.match(path)

    def of(self, notification: Notification) -> Found:
        """Whom a notification belongs to; see `Recipients.of`. It must not be stamped with a later position."""
        return self._recipients.of(notification)

    def _remember(self, step: ViewStep) -> bool:
        now = {each.id: each for each in step.now}
        version = self._history.version
        for change in step.changes:
            if change.position <= self._history.newest or change.position < self._history.horizon:
                continue  # it came with the opening
            self._history.add(change)
            self._last[change.id] = change.position
            if change.id in now:
                self._now[change.id] = now[change.id]
            else:
                self._now.pop(change.id, None)
        forgotten = self._history.forget(step.horizon)
        for change in forgotten:
            if self._last[change.id] == change.position:
                del self._last[change.id]
                self._now.pop(change.id, None)
        return bool(forgotten) or self._history.version != version

    def _recipients_of_now(self) -> Recipients:
        history, now = self._history, self._now
        return Recipients(self._view, history.newest, lambda at: history.recent(at, now))
