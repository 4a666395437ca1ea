"""What the control log says, as far as the job asks: the routing table, suspensions, endpoints. Pure."""

from __future__ import annotations

from typing import Protocol

from topic_model.projections.suspensions import Suspensions
from topic_model.records.control import ControlRecord, subscription_of
from topic_model.routing import History, RoutingTable
from topic_model.subscriptions import Subscription


class SubscriptionListener(Protocol):
    """Who is told what becomes of subscriptions. Called for each record that is read, in whatever thread reads it: it
    has to be quick, and must not ask for anything that waits for that thread."""

    def subscription_changed(self, subscription_id: str) -> None:
        """It is there now, or is another one, or gone, or was suspended or resumed."""

    def endpoint_released(self, endpoint: str) -> None:
        """The last subscription that was pushed to there is gone."""


class ControlState:
    """A fold over the control log. One thread at a time applies; the questions may be asked in any."""

    def __init__(self, history: History | None = None) -> None:
        self.table = RoutingTable(history=history)
        self.suspensions = Suspensions()
        # How many subscriptions are pushed to each endpoint: forty bytes for each, the addresses are the table's own.
        self._at: dict[str, int] = {}
        self._listener: SubscriptionListener | None = None

    def listen(self, listener: SubscriptionListener) -> None:
        """Have somebody told of all changes from now on, in place of whoever was until now."""
        self._listener = listener

    def apply(self, record: ControlRecord, offset: int | None = None) -> None:
        """Fold one record, from this place in the log."""
        changed = subscription_of(record)
        before = self.table.get(changed)
        self.table.apply(record, offset)
        self.suspensions.apply(record)
        if changed:
            self._moved(_endpoint(before), _endpoint(self.table.get(changed)))
            if self._listener is not None:
                self._listener.subscription_changed(changed)

    def subscription(self, subscription_id: str) -> Subscription | None:
        """The subscription, if it is in force."""
        return self.table.get(subscription_id)

    def suspended(self, subscription_id: str) -> bool:
        """Whether nothing is to be tried for a subscription until someone resumes it."""
        return subscription_id in self.suspensions

    def is_pushed_to(self, endpoint: str) -> bool:
        """Whether any subscription has this endpoint."""
        return endpoint in self._at

    @property
    def endpoints(self) -> int:
        """How many endpoints there are."""
        return len(self._at)

    def _moved(self, before: str, after: str) -> None:
        if before == after:
            return
        if after:
            self._at[after] = self._at.get(after, 0) + 1
        if before:
            self._at[before] -= 1
            if not self._at[before]:
                del self._at[before]
                if self._listener is not None:
                    self._listener.endpoint_released(before)


def _endpoint(subscription: Subscription | None) -> str:
    """Where a subscription is pushed to; empty for none, and for one that is pulled from."""
    return "" if subscription is None or subscription.pull_point else subscription.consumer.address
