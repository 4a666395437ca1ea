"""The routing table: a deterministic fold over the control log."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack
from itertools import islice

import msgspec

from arborcast.core.errors import ExpressionError
from arborcast.topic_model.projections.resealing import Resealings
from arborcast.topic_model.projections.triggers import TriggersInForce
from arborcast.topic_model.records.control import (
    ControlRecord,
    SecretsResealed,
    SubscriptionEnded,
    SubscriptionRecord,
    Tombstone,
    TopicRecord,
    TopicRemoved,
    TriggerEnded,
    TriggerRecord,
)
from arborcast.topic_model.records.notifications import UNSTAMPED
from arborcast.topic_model.routing.expiry import Expiry
from arborcast.topic_model.routing.groups import Entry, Group, LinkedGroup, active_of, equal_in, members_of
from arborcast.topic_model.routing.history import Change, History, PackedHistory, Recipients
from arborcast.topic_model.routing.last_changes import LastChanges
from arborcast.topic_model.routing.links import Links
from arborcast.topic_model.routing.members import Answer
from arborcast.topic_model.routing.overlay import Checkpoint, Overlay, OverlayChanges
from arborcast.topic_model.routing.resolver import Resolver
from arborcast.topic_model.routing.rest import LinkTarget, RestIndex
from arborcast.topic_model.routing.selectors import (
    compile_selector,
    is_canonical,
    is_one_topic,
    is_simple,
    normals_of,
    selector_of,
)
from arborcast.topic_model.routing.sharing import Sharing
from arborcast.topic_model.routing.steps import STEP_LIMIT, Recorded, StepChanges, ViewSteps
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.tree import TopicTree

_log = logging.getLogger(__name__)


class Route(msgspec.Struct, frozen=True):
    """A topic, a matching subscription, and the normal form of the matching filter."""

    topic: TopicPath
    expression: str
    subscription: Subscription


class Statistics(msgspec.Struct, frozen=True):
    """Sizes of a routing table, for the metrics."""

    topics: int
    subscriptions: int
    selectors: int
    links: int
    steps: int
    answers: int
    termination_entries: int


class RoutingTable(Resolver):
    """The recipients of topics. `topics` is the tree, changed by `apply` only.

    The state is a function of the last record of each key, in any order of the keys, so replicas are equal after any
    compaction. `apply` never raises: an invalid record must not stop the replicas; an unreadable filter selects nothing
    and is logged.
    """

    def __init__(self, remembered_answers: int = 1_000_000, history: History | None = None) -> None:
        """With a `history`, changes are recorded for `recipients`."""
        super().__init__(remembered_answers)
        self.position = UNSTAMPED
        """The position after the last applied record."""
        self._history = history
        self.topics = TopicTree()
        self._subscriptions: dict[str, Subscription] = {}
        self._entries: dict[str, Entry] = {}
        self._links = Links(self.topics)
        self._expiry = Expiry(self._subscriptions)
        self._sharing = Sharing()
        self.resealings = Resealings()
        """Current ciphertexts of the subscriptions' secrets; those in the table are current."""
        self.triggers = TriggersInForce(self.topics)
        """The subscriptions that are triggers."""
        self._recorders: list[OverlayChanges | StepChanges] = []
        self._last_changes = LastChanges()

    def apply(self, record: ControlRecord, offset: int | None = None) -> None:
        """Apply the record at this position. Applying it again changes nothing."""
        if offset is not None:
            self.position = offset + 1
        match record:
            case SubscriptionRecord(subscription=subscription):
                self._put(self.resealings.current(subscription))
            case SubscriptionEnded(id=identifier) | TriggerEnded(id=identifier):
                self._end(identifier)
            case TopicRecord():
                self._put_topic(record)
            case TopicRemoved(path=path):
                self._remove_topic(path)
            case Tombstone(subject=("sub" | "trigger", identifier)):
                self._end(identifier)
            case Tombstone(subject=("topic", name)):
                self._remove_topic(TopicPath(name))
            case SecretsResealed(id=identifier):
                self._put_if_any(self.resealings.put(record, self.get(identifier)))
            case Tombstone(subject=("seal", identifier)):
                self._put_if_any(self.resealings.remove(identifier, self.get(identifier)))
            case TriggerRecord(subscription=subscription) if subscription.trigger is not None:
                self._put(self.triggers.put(subscription))

    def get(self, subscription_id: str) -> Subscription | None:
        return self._subscriptions.get(subscription_id)

    @property
    def history(self) -> History:
        """The recent changes. Raises ValueError for a table without history."""
        if self._history is None:
            raise ValueError("this routing table was created without a history")
        return self._history

    def recipients(self) -> Recipients:
        """Recipients of notifications, valid until the table changes."""
        history = self.history
        return Recipients(self, history.newest, lambda at: history.recent(at, self._subscriptions))

    def packed_history(self) -> PackedHistory:
        """The recent changes, to be sent beside a snapshot and its overlay."""
        return self.history.packed(self._subscriptions)

    def changed_before(self, path: TopicPath) -> int:
        """A position after the last record that can have changed the recipients of a topic: a view at that position
        gives the current answer."""
        return self._last_changes.of(path)

    def forget_changes(self) -> None:
        """All changes so far count as current. Called after the first read of the log, since compaction removes records
        of changes."""
        self._last_changes.of_all(self.position)

    def find_equal(self, subscription: Subscription) -> Subscription | None:
        """The oldest subscription with the same deliveries."""
        return equal_in(self._entries.get(selector_of(subscription)), subscription)

    @property
    def xpath_selectors(self) -> frozenset[str]:
        """The selectors with an XPath, which are linked to each topic that they select."""
        return self._links.selecting

    def subscriptions(self) -> Iterator[Subscription]:
        """All subscriptions, triggers included, in no particular order."""
        return iter(self._subscriptions.values())

    def due(self, now_ms: int, limit: int) -> tuple[str, ...]:
        """Ids of the expired subscriptions, the earliest, up to this number; they stay until their end is applied."""
        return self._expiry.due(now_ms, limit)

    def routes_to(self, path: TopicPath, limit: int | None = None) -> list[Route]:
        """The subscriptions of a topic with the matching filter, including paused ones, up to this number."""
        routes = (
            Route(path, selector, member)
            for selector in self.selectors_at(path)
            for member in members_of(self._entries.get(selector))
        )
        return list(islice(routes, limit))

    def fan_out(self, path: TopicPath) -> int:
        """The number of recipients of a notification on this topic, without listing them."""
        return sum(len(self._active(selector)) for selector in self.selectors_at(path))

    def statistics(self) -> Statistics:
        """Sizes, in constant time."""
        return Statistics(
            topics=len(self.topics),
            subscriptions=len(self._subscriptions) - len(self.triggers),
            selectors=len(self._entries),
            links=len(self._links.keyed),
            steps=len(self._links.rest),
            answers=self.remembered,
            termination_entries=len(self._expiry),
        )

    def checkpoint(self) -> Checkpoint:
        """A frozen copy for a snapshot, and the beginning of a recording of later changes."""
        self._prepare()
        base = uuid.uuid4().hex
        xpaths = self._links.selecting
        changes = OverlayChanges(base, xpaths)

        def overlay() -> Overlay:
            self._prepare()
            return changes.overlay(self._subscriptions, self._links.selection)

        recording = self._recording(changes)
        return Checkpoint(base, self._entries, self._links.frozen(), xpaths, overlay, recording)

    def steps(self, checkpoint: Checkpoint, limit: int = STEP_LIMIT) -> ViewSteps:
        """The later changes of the table, and those since an open checkpoint, in steps for views of its snapshot.
        Raises ValueError for a table without history."""
        self._prepare()
        history, changes = self.history, StepChanges(checkpoint.base, checkpoint.xpaths)

        def recorded() -> Recorded:
            self._prepare()
            return self.position, *changes.take(self._subscriptions, self._links.selection)

        return ViewSteps(checkpoint, history, self._subscriptions, recorded, self._recording(changes), limit)

    def _recording(self, recorder: OverlayChanges | StepChanges) -> ExitStack:
        """Record changes until the context is closed."""
        self._recorders.append(recorder)
        recording = ExitStack()
        recording.callback(self._recorders.remove, recorder)
        return recording

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RoutingTable):
            return NotImplemented
        return self._subscriptions == other._subscriptions and self.topics == other.topics

    __hash__ = None  # type: ignore[assignment]  # it changes

    # Subscriptions

    def _put(self, subscription: Subscription) -> None:
        old = self._subscriptions.get(subscription.id)
        if old == subscription:
            return
        selector = selector_of(subscription)
        moved = old is not None and selector_of(old) != selector
        self._remember(subscription.id, old, leaves=moved)
        if old is not None and moved:
            self._end_quietly(old)
            old = None
        entry = self._entries.get(selector)
        new = self._sharing.compact(subscription, next(members_of(entry), None))
        self._subscriptions[new.id] = new
        self._expiry.added(new)
        if old is None:
            self._join(selector, entry, new)
        else:
            self._expiry.removed(old)
            self._replace(selector, entry, old, new)
        self._selector_changed(selector)
        for recorder in self._recorders:
            recorder.touch(selector, new.id, born=old is None and not moved)

    def _put_if_any(self, subscription: Subscription | None) -> None:
        if subscription is not None:
            self._put(subscription)

    def _end(self, subscription_id: str) -> None:
        self.resealings.ended(subscription_id)
        self.triggers.ended(subscription_id)
        old = self._subscriptions.get(subscription_id)
        if old is None:
            return
        self._remember(subscription_id, old, leaves=True)
        self._end_quietly(old)
        for recorder in self._recorders:
            recorder.ended(subscription_id)

    def _remember(self, subscription_id: str, before: Subscription | None, leaves: bool) -> None:
        if self._history is None or self.position == UNSTAMPED:
            return
        selected: tuple[TopicPath, ...] | None = None
        if before is not None and leaves:
            entry = self._entries[selector_of(before)]
            if isinstance(entry, LinkedGroup) and len(entry) == 1:
                # The last member of an XPath removes its selection.
                self._prepare()
                selected = self._links.selection(selector_of(before))
        self._history.add(Change(self.position - 1, subscription_id, before, selected or ()))

    def _end_quietly(self, old: Subscription) -> None:
        selector = selector_of(old)
        self._leave(selector, old)
        del self._subscriptions[old.id]
        self._expiry.removed(old)
        self._selector_changed(selector)
        for recorder in self._recorders:
            recorder.touch(selector, old.id)

    def _join(self, selector: str, entry: Entry | None, new: Subscription) -> None:
        if isinstance(entry, Group):
            entry.add(new)
        elif entry is not None:
            self._entries[selector] = Group((entry, new))
        elif is_simple(selector):
            self._entries[selector] = new
        else:
            self._entries[selector] = self._linked(selector, new)

    def _replace(self, selector: str, entry: Entry | None, old: Subscription, new: Subscription) -> None:
        if isinstance(entry, Group):
            entry.remove(old)
            entry.add(new)
        else:
            self._entries[selector] = new

    def _leave(self, selector: str, old: Subscription) -> None:
        entry = self._entries[selector]
        if not isinstance(entry, Group):
            del self._entries[selector]
            return
        entry.remove(old)
        if isinstance(entry, LinkedGroup):
            if not len(entry):
                del self._entries[selector]
                self._links.remove(selector, entry)
                for recorder in self._recorders:
                    recorder.unlinked(selector)
        elif len(entry) == 1:
            self._entries[selector] = next(iter(entry))

    def _linked(self, selector: str, first: Subscription) -> Entry:
        """The linked group of a selector that is not simple; an unreadable one is not linked."""
        normals = normals_of(first)
        try:
            definition = compile_selector(normals)
        except ExpressionError as error:
            _log.error("subscription %s gets no notifications: its topic filter is invalid: %s", first.id, error)
            return first
        group = LinkedGroup((first,), definition)
        self._links.add(selector, group)
        for recorder in self._recorders:
            recorder.linked(selector, normals, selects=bool(definition.xpaths))
        return group

    def _selector_changed(self, selector: str) -> None:
        self._last_changes.of_selector(selector, self.position)
        if is_simple(selector) and is_one_topic(selector):
            self.forget(selector)
        else:
            self.forget_all()

    # Topics

    def _put_topic(self, record: TopicRecord) -> None:
        path = record.path
        if not is_canonical(path):
            _log.error("the topic %r is ignored: its path is not canonical", path)
            return
        if self.topics.get(path) == record:
            return
        before = self.topics.policy(path).routing
        self.topics.put(record)
        self._topic_changed(path, record.policy.routing != before)

    def _remove_topic(self, path: TopicPath) -> None:
        before = self.topics.policy(path).routing
        if not self.topics.remove(path):
            return
        self._topic_changed(path, bool(before))

    def _topic_changed(self, path: TopicPath, routing: bool) -> None:
        for trigger in self.triggers.publishing_to(path, below=routing):
            self._put(trigger)
        # Only XPath needs the topic set: answers of path patterns do not depend on existing topics.
        if self._links.topic_changed(path, self._selection_changed):
            self._last_changes.of_all(self.position)
            self.forget_all()
        else:
            self._last_changes.of_selector(path, self.position)
            self.forget(path)

    # Callbacks of the resolver

    def _prepare(self) -> None:
        if self._links.stale:
            self._links.refresh(self._selection_changed)

    def _selection_changed(self, selector: str, gained: Collection[str], lost: Collection[str]) -> None:
        for recorder in self._recorders:
            recorder.selection_changed(selector, gained, lost)

    def _targets(self, key: str) -> Iterable[LinkTarget]:
        # Most tables have simple selectors only; the first look-up of a topic then needs one dictionary.
        linked = self._links.at(key) if self._links.keyed else ()
        return (*linked, LinkTarget(key)) if key in self._entries else linked

    def _active(self, selector: str) -> Answer:
        return active_of(self._entries.get(selector))

    def _rest_indexes(self) -> Iterable[RestIndex]:
        return (self._links.rest,) if self._links.rest else ()
