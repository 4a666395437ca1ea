"""Pull points and their subscriptions: a fold over the control log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set

from arborcast.topic_model.projections.owners import discard, drop
from arborcast.topic_model.records.control import (
    ControlRecord,
    PullPointEnded,
    PullPointRecord,
    SubscriptionEnded,
    SubscriptionRecord,
    Tombstone,
)
from arborcast.topic_model.subscriptions import BoundEndpoint


class BoundEndpoints:
    """Pull points of HPwsn's clients that are second addresses of subscriptions."""

    def __init__(self) -> None:
        self._bound: dict[str, tuple[str, BoundEndpoint]] = {}  # subscription to its owner and endpoint
        self._subscriptions: dict[str, set[str]] = {}  # endpoint to subscriptions
        self._named: dict[tuple[str, str], dict[str, set[str]]] = {}  # by owner and name, endpoint to subscriptions

    def bind(self, subscription_id: str, owner: str, endpoint: BoundEndpoint | None) -> None:
        """Set the pull point of a subscription; None for none."""
        its_owner, old = self._bound.pop(subscription_id, ("", None))
        if old is not None:
            discard(self._subscriptions, old.id, subscription_id)
            if old.name:
                named = self._named[its_owner, old.name]
                discard(named, old.id, subscription_id)
                if not named:
                    del self._named[its_owner, old.name]
        if endpoint is not None:
            self._bound[subscription_id] = owner, endpoint
            self._subscriptions.setdefault(endpoint.id, set()).add(subscription_id)
            if endpoint.name:
                named = self._named.setdefault((owner, endpoint.name), {})
                named.setdefault(endpoint.id, set()).add(subscription_id)

    def subscriptions_of(self, endpoint_id: str) -> Set[str]:
        """Ids of the subscriptions with this pull point."""
        return self._subscriptions.get(endpoint_id, frozenset())

    def named(self, name: str, owner: str = "") -> str:
        """The id of the owner's pull point of this name; empty for none."""
        return min(self._named.get((owner, name), ()), default="")

    def name_of(self, endpoint_id: str, owner: str) -> str:
        """The owner's name for the pull point, the same in all of its subscriptions; empty for none."""
        bound = map(self._bound.__getitem__, self.subscriptions_of(endpoint_id))
        return next((endpoint.name for its_owner, endpoint in bound if its_owner == owner), "")

    def __len__(self) -> int:
        """The number of subscriptions with such a pull point."""
        return len(self._bound)


class PullPoints:
    """The current pull points, a function of the last record of each key. `exists` also covers subscriptions that are
    pulled from directly."""

    def __init__(self) -> None:
        self._points: dict[str, PullPointRecord] = {}
        self._named: dict[tuple[str, str], set[str]] = {}  # ids by owner and name
        self._owned: Counter[str] = Counter()
        self._fills: dict[str, str] = {}  # subscription to pull point
        self._filled: dict[str, set[str]] = {}  # pull point to subscriptions
        self._unused: set[str] = set()  # provisional pull points without subscriptions
        self._missing: set[str] = set()  # ids of subscriptions' pull points that do not exist
        self.endpoints = BoundEndpoints()

    def apply(self, record: ControlRecord) -> None:
        match record:
            case PullPointRecord():
                self._remove(record.id)
                self._points[record.id] = record
                self._owned[record.owner] += 1
                if record.name:
                    self._named.setdefault((record.owner, record.name), set()).add(record.id)
                self._changed(record.id)
            case PullPointEnded(id=pull_point_id) | Tombstone(subject=("pull", pull_point_id)):
                self._remove(pull_point_id)
            case SubscriptionRecord(subscription=subscription):
                self._link(subscription.id, subscription.pull_point)
                self.endpoints.bind(subscription.id, subscription.owner, subscription.endpoint)
            case SubscriptionEnded(id=subscription_id) | Tombstone(subject=("sub", subscription_id)):
                self._link(subscription_id, "")
                self.endpoints.bind(subscription_id, "", None)

    def get(self, pull_point_id: str) -> PullPointRecord | None:
        """The created pull point with this id."""
        return self._points.get(pull_point_id)

    def named(self, name: str, owner: str = "") -> PullPointRecord | None:
        """The owner's oldest pull point of this name; two gateways may have created one each at the same time."""
        candidates = map(self._points.__getitem__, self._named.get((owner, name), ()))
        return min(candidates, key=lambda point: (point.created_ms, point.id), default=None)

    def exists(self, pull_point_id: str) -> bool:
        """Whether messages for this id are stored: a pull point, or a subscription that is pulled from directly."""
        return pull_point_id in self._points or self._fills.get(pull_point_id) == pull_point_id

    def subscriptions_of(self, pull_point_id: str) -> Set[str]:
        """Ids of the subscriptions whose consumer is this pull point."""
        return self._filled.get(pull_point_id, frozenset())

    def unused(self, now_ms: int) -> list[str]:
        """Ids of the expired provisional pull points."""
        return [each for each in self._unused if self._points[each].until_ms <= now_ms]

    def is_provisional(self, pull_point_id: str) -> bool:
        """Whether the pull point is still unused."""
        return pull_point_id in self._unused

    def orphans(self) -> list[str]:
        """Ids of the subscriptions with a missing pull point."""
        return [subscription_id for each in self._missing for subscription_id in self._filled[each]]

    def __len__(self) -> int:
        """The number of created pull points."""
        return len(self._points)

    def of_owner(self, owner: str) -> int:
        """The number of this owner's pull points."""
        return self._owned[owner]

    def _remove(self, pull_point_id: str) -> None:
        old = self._points.pop(pull_point_id, None)
        if old is not None:
            drop(self._owned, old.owner)
            if old.name:
                discard(self._named, (old.owner, old.name), old.id)
        self._changed(pull_point_id)

    def _link(self, subscription_id: str, pull_point_id: str) -> None:
        old = self._fills.pop(subscription_id, "")
        if old:
            discard(self._filled, old, subscription_id)
            self._changed(old)
        if pull_point_id:
            self._fills[subscription_id] = pull_point_id
            self._filled.setdefault(pull_point_id, set()).add(subscription_id)
            self._changed(pull_point_id)

    def _changed(self, pull_point_id: str) -> None:
        """Update the sets that are looked through once a second."""
        point, filled = self._points.get(pull_point_id), pull_point_id in self._filled
        self._unused.discard(pull_point_id)
        self._missing.discard(pull_point_id)
        if point is not None and point.until_ms and not filled:
            self._unused.add(pull_point_id)
        if filled and not self.exists(pull_point_id):
            self._missing.add(pull_point_id)
