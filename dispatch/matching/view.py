"""The routing table on the driver, and its copies for workers.

The driver folds the control log. Workers get a base (a snapshot, see `bases`) and, in a Spark broadcast, an overlay
(later changes) with the history for notifications accepted before; a worker opens each once. Without changes a batch
costs a query of the log's end; a change needs a new overlay; a new base is built in a thread.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from pyspark import SparkContext
from pyspark.core.broadcast import Broadcast

from arborcast.core.errors import InfrastructureError
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.matching.bases import MIN_OVERLAY, Bases, SharedBase, SnapshotRebuilder
from arborcast.dispatch.monitoring.sources import ViewSize
from arborcast.topic_model.control_log import ControlFollower
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.projections.suspensions import State
from arborcast.topic_model.records.control import ControlRecord, subscription_of
from arborcast.topic_model.routing import History, Overlay, PackedHistory, Recipients, ViewStep, ViewSteps
from arborcast.topic_model.routing.table import Route
from arborcast.topic_model.snapshot import Snapshot, SnapshotView
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import TopicPath

if TYPE_CHECKING:
    # No worker imports it.
    from arborcast.dispatch.matching.unmatched import Unmatched


class SubscriptionListener:
    """Gets changes of subscriptions, for each record, in the reading thread: its methods must be quick, and must not
    wait for that thread."""

    def subscription_changed(self, subscription_id: str) -> None:
        """The subscription was added, changed, removed, suspended or resumed."""

    def endpoint_released(self, endpoint: str) -> None:
        """The last subscription with this endpoint has ended."""


class ControlState(ControlView):
    """A control view with the endpoints. Records are applied by one thread at a time; queries are thread-safe."""

    def __init__(self, history: History | None = None) -> None:
        super().__init__(history=history)
        # Number of subscriptions per endpoint: forty bytes for each; the addresses are shared with the table.
        self._subscribers: dict[str, int] = {}
        self._servers: dict[TopicPath, tuple[Subscription, ...]] = {}
        self._listeners: list[SubscriptionListener] = []

    def listen(self, listener: SubscriptionListener) -> None:
        self._listeners.append(listener)

    def apply(self, record: ControlRecord, offset: int | None = None) -> None:
        changed = subscription_of(record)
        before = self.table.get(changed)
        super().apply(record, offset)
        if changed:
            after = self.table.get(changed)
            self._moved(_endpoint(before), _endpoint(after))
            if (before is not None and before.queue) or (after is not None and after.queue):
                self._serves(before, after)
            for each in self._listeners:
                each.subscription_changed(changed)

    def subscription(self, subscription_id: str) -> Subscription | None:
        return self.table.get(subscription_id)

    def suspended(self, subscription_id: str) -> bool:
        """Whether nothing is pushed to a subscription until it is resumed."""
        return subscription_id in self.suspensions

    def is_pushed_to(self, endpoint: str) -> bool:
        return endpoint in self._subscribers

    def servers(self, queue: TopicPath) -> tuple[Subscription, ...]:
        return self._servers.get(queue, ())

    def _serves(self, before: Subscription | None, after: Subscription | None) -> None:
        for subscription in (before, after):
            if subscription is not None and subscription.queue:
                # It is for one topic, which is its normal form.
                queue = TopicPath(subscription.selector())
                others = tuple(each for each in self.servers(queue) if each.id != subscription.id)
                self._servers[queue] = (*others, subscription) if subscription is after else others
                if not self._servers[queue]:
                    del self._servers[queue]

    def _moved(self, before: str, after: str) -> None:
        if before == after:
            return
        if after:
            self._subscribers[after] = self._subscribers.get(after, 0) + 1
        if before:
            self._subscribers[before] -= 1
            if not self._subscribers[before]:
                del self._subscribers[before]
                for each in self._listeners:
                    each.endpoint_released(before)


def _endpoint(subscription: Subscription | None) -> str:
    """The address to which a subscription is pushed, empty if it is not."""
    return subscription.consumer.address if subscription is not None and subscription.pushed else ""


# This number of topics takes about a millisecond.
_ROUTES_PIECE = 100

# With this number of changes the history is pruned; at most every 5 s.
_LONG_PAST = 1_000
_CHECK_S = 5.0


class ViewChanges(NamedTuple):
    """The contents of a broadcast."""

    overlay: Overlay
    past: PackedHistory


@dataclass(frozen=True)
class SharedView:
    """The view of one batch, as part of its tasks. `control` is the offset up to which the control log was read for
    it."""

    base: SharedBase
    changed: Broadcast[ViewChanges] | None
    control: int

    def open(self) -> Recipients:
        """In a worker: the view, opened once per version."""
        global _opened
        # A worker process has one Broadcast object per broadcast, whatever the number of tasks with it.
        if _opened is None or _opened.base != self.base or _opened.changed is not self.changed:
            # With a new overlay only, unpacked parts of the base stay.
            snapshot = _opened.snapshot if _opened is not None and _opened.base == self.base else self.base.open()
            overlay, past = self.changed.value if self.changed is not None else (None, PackedHistory())
            view = Recipients.packed(SnapshotView(snapshot, overlay), past)
            _opened = _Opened(self.base, snapshot, self.changed, view)
        return _opened.view


@dataclass(frozen=True)
class _Opened:
    base: SharedBase
    snapshot: Snapshot
    changed: Broadcast[ViewChanges] | None
    view: Recipients


_opened: _Opened | None = None


class Advance(NamedTuple):
    """Steps for the views of workers, from a new `base`, or from the previous step if it is None; and the position of
    the control log for them."""

    base: SharedBase | None
    steps: Sequence[ViewStep]
    control: int


class _Broadcasts:
    """The view of batches: a base, and a broadcast with later changes. For one thread, except `sizes`."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._view: SharedView | None = None
        self._overlay: Overlay | None = None  # in the broadcast
        self._version = -1  # of the history in the broadcast
        self._measured: tuple[Overlay, int] | None = None

    def share(self, base: SharedBase, overlay: Overlay, version: int, past: Callable[[], PackedHistory]) -> SharedView:
        """The last view without changes, else a new one. `version` is that of the history of `past`."""
        if self._view is None or base != self._view.base or overlay is not self._overlay or version != self._version:
            if self._view is not None and self._view.changed is not None:
                self._view.changed.destroy()
            self._overlay, self._version = overlay, version
            changes = ViewChanges(overlay, past())
            needed = overlay.size or changes.past.pieces
            self._view = SharedView(base, self._context.broadcast(changes) if needed else None, 0)
        return self._view

    def sizes(self) -> tuple[int, int, int]:
        """Changes in the overlay, bytes of the base, bytes of the overlay (measured once for each)."""
        overlay, view = self._overlay, self._view
        if overlay is None or not overlay.size:
            return 0, view.base.size if view else 0, 0
        if self._measured is None or self._measured[0] is not overlay:
            self._measured = overlay, overlay.packed_size()
        return overlay.size, view.base.size if view else 0, self._measured[1]


class RoutingView(ControlState):
    """The driver's side. Batches and the redelivery use it, each in its own thread; queries of ControlState are as of
    the last read. `unmatched` has the acceptance position of the oldest unmatched notification: earlier history is
    removed."""

    def __init__(
        self,
        kafka: KafkaSettings,
        context: SparkContext,
        bases: Bases,
        min_overlay: int = MIN_OVERLAY,
        unmatched: Unmatched | None = None,
    ) -> None:
        self._history = History()
        super().__init__(self._history)
        self._lock = threading.Lock()
        self._unmatched = unmatched
        self._pruned_at: float | None = None
        self._follower = ControlFollower(kafka, self.apply)
        self._rebasing = SnapshotRebuilder(self.table, bases, min_overlay)
        self._shared = _Broadcasts(context)
        self._steps: ViewSteps | None = None
        self.read_s = 0.0
        """Duration of the last read of the control log by `refresh`, in seconds."""

    @property
    def size(self) -> ViewSize:
        """The sizes of the workers' view, as of the last `refresh`."""
        return ViewSize(self.table.statistics().subscriptions, self._rebasing.made_at, *self._shared.sizes())

    def refresh(self, timeout_s: float) -> SharedView:
        """Read the control log to its end and return the view. The previous view may be discarded: no task that was
        started with it may still run. Raises InfrastructureError if the end is not reached in time, RecordVersionError
        for a newer version."""
        with self._lock:
            self._prune()
            began = time.perf_counter()
            self._follower.read_to_end(timeout_s)
            self.read_s = time.perf_counter() - began
            base, overlay = self._rebasing.current()
            shared = self._shared.share(base, overlay, self._history.version, self.table.packed_history)
            return dataclasses.replace(shared, control=self._follower.position)

    def advance(
        self, timeout_s: float, snapshot: bool, end: int | None = None, *, stopped: Callable[[], bool] = lambda: False
    ) -> Advance:
        """Read the control log to its end, or to a known end; returns the changes since the last call, or, with
        `snapshot`, a base and the changes since it. For workers in real time, which apply small steps and keep their
        base. Raises as `refresh` does; then the next call must have `snapshot`. If `stopped` returns True during the
        wait for the view, the steps are part of the next call."""
        with self._lock:
            if stopped():
                raise InfrastructureError("the updates of these workers have stopped")
            self._prune()
            if end is None:
                self._follower.read_to_end(timeout_s)
            else:
                self._follower.read_to(end, timeout_s)
            if self._steps is not None and not snapshot:
                return Advance(None, self._steps.steps(), self._follower.position)
            if self._steps is not None:
                self._steps.close()
            base, checkpoint = self._rebasing.newest()
            self._steps = self.table.steps(checkpoint)
            return Advance(base, self._steps.opening(), self._follower.position)

    def is_short(self, past: int) -> bool:
        """Whether a snapshot by `advance` is short: there is a new base (otherwise one is being built), and at most
        this number of past changes."""
        with self._lock:
            return len(self._history) <= past and self._rebasing.renewed()

    def end_steps(self) -> None:
        """Call after the last `advance`."""
        with self._lock:
            if self._steps is not None:
                self._steps.close()
            self._steps = None

    def catch_up(self, timeout_s: float) -> int:
        """Read the control log to its end, for `subscription`; returns the position. Raises as `refresh` does."""
        with self._lock:
            self._follower.read_to_end(timeout_s)
            return self._follower.position

    def has_topic(self, path: TopicPath) -> bool:
        return path in self.table.topics

    def all_suspended(self) -> frozenset[str]:
        """All subscriptions to which nothing is pushed."""
        with self._lock:
            return self.suspensions.ids()

    def all_unjudged(self) -> frozenset[str]:
        """The suspended subscriptions whose conditions are not evaluated."""
        with self._lock:
            return self.suspensions.unjudged()

    def routes(self, limit: int) -> list[tuple[Route, State]]:
        """Up to `limit` routes with their states, for the tables; a batch waits for one piece at most."""
        with self._lock:
            paths = list(islice(self.table.topics.paths(), limit))
        found: list[tuple[Route, State]] = []
        for begin in range(0, len(paths), _ROUTES_PIECE):
            with self._lock:
                for path in paths[begin : begin + _ROUTES_PIECE]:
                    routes = self.table.routes_to(path, limit - len(found))
                    found += [(route, self.suspensions.state_of(route.subscription)) for route in routes]
            if len(found) >= limit:
                break
        return found

    def close(self) -> None:
        self._follower.close()
        self._rebasing.close()

    def _prune(self) -> None:
        """Remove the history before the oldest unmatched notification."""
        if self._unmatched is None:
            return
        now = time.monotonic()
        if self._pruned_at is None:
            # The log has a day of changes, most of them without unmatched notifications: none of those must stay.
            oldest: int | None = self._unmatched.oldest()
            self._pruned_at = now
        else:
            oldest = self._unmatched.take()
            if len(self._history) > _LONG_PAST and now > self._pruned_at + _CHECK_S:
                self._pruned_at = now
                self._unmatched.start()
        if oldest is not None:
            self._history.forget(oldest)
