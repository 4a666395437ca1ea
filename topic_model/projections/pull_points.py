"""Which pull points there are and which subscriptions fill them: a fold over the control log."""

from __future__ import annotations

from collections.abc import Set

from topic_model.records.control import (
    ControlRecord,
    PullPointEnded,
    PullPointRecord,
    SubscriptionEnded,
    SubscriptionRecord,
    Tombstone,
    pull_point_key,
    subscription_key,
)

_PULL_POINT_KEY = pull_point_key("")
_SUBSCRIPTION_KEY = subscription_key("")


class PullPoints:
    """The pull points of now. Like the routing table: the state follows from the last record of each key alone.

    A pull point is one that was created, or a subscription that is its own (see `is_there`).
    """

    def __init__(self) -> None:
        self._points: dict[str, PullPointRecord] = {}
        self._named: dict[tuple[str, str], dict[str, PullPointRecord]] = {}  # by owner and name
        self._fills: dict[str, str] = {}  # subscription to pull point
        self._filled: dict[str, set[str]] = {}  # pull point to subscriptions

    def apply(self, record: ControlRecord) -> None:
        """Fold one record; those of other kinds change nothing."""
        match record:
            case PullPointRecord():
                self._remove(record.id)
                self._points[record.id] = record
                if record.name:
                    self._named.setdefault((record.owner, record.name), {})[record.id] = record
            case PullPointEnded(id=pull_point_id):
                self._remove(pull_point_id)
            case SubscriptionRecord(subscription=subscription):
                self._link(subscription.id, subscription.pull_point)
            case SubscriptionEnded(id=subscription_id):
                self._link(subscription_id, "")
            case Tombstone(key=key) if key.startswith(_PULL_POINT_KEY):
                self._remove(key.removeprefix(_PULL_POINT_KEY))
            case Tombstone(key=key) if key.startswith(_SUBSCRIPTION_KEY):
                self._link(key.removeprefix(_SUBSCRIPTION_KEY), "")

    def get(self, pull_point_id: str) -> PullPointRecord | None:
        """The pull point that was created under this id."""
        return self._points.get(pull_point_id)

    def named(self, name: str, owner: str = "") -> PullPointRecord | None:
        """The owner's oldest pull point of this name: two gateways may have created one each at the same time."""
        candidates = self._named.get((owner, name))
        return min(candidates.values(), key=lambda point: (point.created_ms, point.id)) if candidates else None

    def is_there(self, pull_point_id: str) -> bool:
        """Whether messages for this id are kept: a pull point, or a subscription that is pulled from directly."""
        return pull_point_id in self._points or self._fills.get(pull_point_id) == pull_point_id

    def subscriptions_of(self, pull_point_id: str) -> Set[str]:
        """Ids of the subscriptions whose consumer is this pull point."""
        return self._filled.get(pull_point_id, frozenset())

    def orphans(self) -> list[str]:
        """Ids of the subscriptions whose pull point is not there."""
        return [
            subscription_id
            for pull_point_id, filling in self._filled.items()
            if not self.is_there(pull_point_id)
            for subscription_id in filling
        ]

    def __len__(self) -> int:
        """How many were created and are there."""
        return len(self._points)

    def _remove(self, pull_point_id: str) -> None:
        old = self._points.pop(pull_point_id, None)
        if old is not None and old.name:
            same_name = self._named[old.owner, old.name]
            del same_name[old.id]
            if not same_name:
                del self._named[old.owner, old.name]

    def _link(self, subscription_id: str, pull_point_id: str) -> None:
        old = self._fills.pop(subscription_id, "")
        if old:
            filling = self._filled[old]
            filling.remove(subscription_id)
            if not filling:
                del self._filled[old]
        if pull_point_id:
            self._fills[subscription_id] = pull_point_id
            self._filled.setdefault(pull_point_id, set()).add(subscription_id)
