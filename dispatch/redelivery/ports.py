"""What the redelivery asks of the rest of the job."""

from __future__ import annotations

from typing import Protocol

from topic_model.subscriptions import Subscription


class Subscriptions(Protocol):
    """The subscriptions of now. A subscription that has not changed should be the same object as before."""

    def subscription(self, subscription_id: str) -> Subscription | None:
        """The subscription, if it is in force."""

    def suspended(self, subscription_id: str) -> bool:
        """Whether it is suspended."""

    def is_pushed_to(self, endpoint: str) -> bool:
        """Whether any subscription in force has this endpoint. Called in any thread, under a lock."""


class Changes(Protocol):
    """Who is told what becomes of subscriptions, in whatever thread reads of it: to be quick, to wait for nothing."""

    def subscription_changed(self, subscription_id: str) -> None:
        """It is there now, or is another one, or gone, or was suspended or resumed."""

    def endpoint_released(self, endpoint: str) -> None:
        """The last subscription that was pushed to there is gone."""


class Holds(Protocol):
    """Who is told which lanes no batch may push past."""

    def found(self, lane: str) -> None:
        """Something untried waits in this lane."""

    def drained(self, lane: str) -> None:
        """Nothing untried waits in it any more."""
