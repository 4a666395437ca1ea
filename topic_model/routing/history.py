"""Recipients of a notification: the subscriptions that were active at its acceptance.

A gateway stamps a notification with the position of its view in the control log. A newer view matches it, after
subscriptions were created, renewed, paused, resumed or ended. The history has the former states of recently changed
subscriptions, so each subscription is evaluated as of the stamp. Without a change since, this costs one comparison of
numbers. XPaths are an exception: they select from the current topics.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Literal, NamedTuple

import msgspec

from arborcast.core.errors import ExpressionError
from arborcast.topic_model.patterns.patterns import XPATH_SCHEME
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.routing.links import LinkIndex
from arborcast.topic_model.routing.members import Answer
from arborcast.topic_model.routing.resolver import Resolver
from arborcast.topic_model.routing.rest import LinkTarget, RestIndex
from arborcast.topic_model.routing.selectors import compile_selector, is_simple, normals_of, selector_of
from arborcast.topic_model.subscriptions import Subscription, queue_of
from arborcast.topic_model.topics import TopicPath

Standing = Literal["belongs", "made later", "paused", "over"]
"""The state of a subscription as of a notification's acceptance."""

# Cached answers about changes; every change clears them.
_CACHED_TOPICS = 10_000

# Changes that are packed and unpacked together.
_PIECE = 64


def standing(subscription: Subscription, made_later: bool, accepted_ms: int) -> Standing:
    """Whether a notification accepted at `accepted_ms` belongs to a subscription that matches its topic: the common
    rule of dispatch and audit.

    `subscription` is its state at the notification's stamp or, with `made_later`, its first state after the stamp. Then
    its creation time decides: the stamp is that of one gateway's view, and another gateway may have answered the
    Subscribe earlier; and after compaction the remaining record looks like the creation.
    """
    if made_later and subscription.created_ms >= accepted_ms:
        return "made later"
    if not subscription.receives:
        return "paused"
    return "over" if subscription.expired(accepted_ms) else "belongs"


class Change(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The state of a subscription `before` the record at this position of the control log; None if it did not exist.
    `selected` are the topics of an XPath that ends with its last subscription."""

    position: int
    id: str
    before: Subscription | None = None
    selected: tuple[TopicPath, ...] = ()


class RecentChanges(NamedTuple):
    """The changes from the position `reaches` on, in order, and the current state of the changed subscriptions that
    have not ended."""

    reaches: int
    changes: Sequence[Change]
    now: Mapping[str, Subscription]


class _Piece(msgspec.Struct, frozen=True, array_like=True):
    """Some changes as bytes, the last of them at this position."""

    last: int
    changes: bytes
    now: bytes


class PackedHistory(msgspec.Struct, frozen=True, array_like=True):
    """A history packed for workers, which unpack only the required pieces."""

    pieces: tuple[_Piece, ...] = ()

    @property
    def newest(self) -> int:
        """The position of the last change, -1 without any."""
        return self.pieces[-1].last if self.pieces else -1

    def recent(self, at: int) -> RecentChanges:
        """The changes from this position on, and some before."""
        first = _first(bisect_left(self.pieces, at, key=attrgetter("last")), len(self.pieces))
        changes: list[Change] = []
        now: dict[str, Subscription] = {}
        for piece in self.pieces[first:]:
            changes += _changes_decoder.decode(piece.changes)
            now.update((each.id, each) for each in _now_decoder.decode(piece.now))
        return RecentChanges(self.pieces[first - 1].last + 1 if first else 0, changes, now)


_position = attrgetter("position")
_encoder = msgspec.msgpack.Encoder()
_changes_decoder = msgspec.msgpack.Decoder(list[Change])
_now_decoder = msgspec.msgpack.Decoder(list[Subscription])


def _first(requested: int, end: int) -> int:
    """The first piece to unpack: twice as many as requested, since the next request may be for a slightly earlier
    position."""
    return max(0, 2 * requested - end)


class History:
    """The changes of a routing table from the position `horizon` on. Memory is proportional to these changes."""

    def __init__(self, horizon: int = 0) -> None:
        self.horizon = horizon
        """Changes before this position are forgotten."""
        self._changes: list[Change] = []
        self.version = 0
        """Grows with every change."""

    def __len__(self) -> int:
        return len(self._changes)

    def add(self, change: Change) -> None:
        if change.position >= self.horizon:
            self._changes.append(change)
            self.version += 1

    def forget(self, position: int, limit: int = sys.maxsize) -> Sequence[Change]:
        """Drop the changes before this position, about `limit` of them at a time; returns the dropped ones, the oldest
        first. A notification accepted before the position is matched with the oldest remaining state."""
        if position <= self.horizon:
            return ()
        end = bisect_left(self._changes, position, key=_position)
        if end > limit:
            # All changes of one position, or none.
            position = self._changes[limit].position + 1
            end = bisect_left(self._changes, position, key=_position)
        self.horizon = position
        forgotten = self._changes[:end]
        del self._changes[:end]
        return forgotten

    @property
    def newest(self) -> int:
        """The position of the last change, -1 without any."""
        return self._changes[-1].position if self._changes else -1

    def since(self, version: int) -> Sequence[Change]:
        """The changes since this version that are not forgotten."""
        return self._changes[max(0, len(self._changes) + version - self.version) :]

    def recent(self, at: int, subscriptions: Mapping[str, Subscription]) -> RecentChanges:
        """The changes from this position on, and some before, with the current subscriptions."""
        first = _first(bisect_left(self._changes, at, key=_position), len(self._changes))
        reaches = self._changes[first - 1].position + 1 if first else 0
        return RecentChanges(reaches, self._changes[first:], subscriptions)

    def packed(self, subscriptions: Mapping[str, Subscription]) -> PackedHistory:
        """All changes, packed for the workers."""
        pieces = []
        for begin in range(0, len(self._changes), _PIECE):
            changes = self._changes[begin : begin + _PIECE]
            ids = {change.id for change in changes}
            now = [found for each in ids if (found := subscriptions.get(each)) is not None]
            pieces.append(_Piece(changes[-1].position, _encoder.encode(changes), _encoder.encode(now)))
        return PackedHistory(tuple(pieces))


class Found(NamedTuple):
    """The recipients of a notification: `existing` subscriptions, in their current state, and subscriptions `ended`
    since, in their former state."""

    existing: Sequence[Subscription]
    ended: Sequence[Subscription]


class Recipients:
    """Recipients of notifications, by a current view and its recent changes up to the position `newest`. Created again
    when the view changes."""

    def __init__(self, view: Resolver, newest: int, recent: Callable[[int], RecentChanges]) -> None:
        self.view = view
        self._newest = newest
        self._recent = recent
        self._former: _FormerStates | None = None

    @classmethod
    def packed(cls, view: Resolver, past: PackedHistory) -> Recipients:
        return cls(view, past.newest, past.recent)

    def of(self, notification: Notification) -> Found:
        """The view must have reached the notification's stamp. A notification without a stamp belongs to the current
        subscriptions."""
        at, accepted_ms = notification.control, notification.accepted_ms
        selector = notification.selector
        matched = self.view.members_of(selector) if selector else self.view.match(notification.topic)
        if 0 <= at <= self._newest:
            found = self._as_of_stamp(notification, matched)
        else:
            found = Found([each for each in matched if not each.expired(accepted_ms)], ())
        if notification.only:
            found = Found(*([each for each in part if each.id == notification.only] for part in found))
        elif notification.queue:
            # In place of its servers: one of them gets the request later.
            existing, ended = ([each for each in part if not each.queue] for part in found)
            found = Found([*existing, queue_of(notification.topic)], ended)
        return found

    def _as_of_stamp(self, notification: Notification, matched: Iterable[Subscription]) -> Found:
        at, accepted_ms = notification.control, notification.accepted_ms
        if self._former is None or at < self._former.reaches:
            self._former = _FormerStates(self._recent(at))
        known = self._former
        last = known.last
        existing = [each for each in matched if last.get(each.id, -1) < at and not each.expired(accepted_ms)]
        ended = []
        for after, until, former, made_later, _ in known.spans(notification.topic, self.view):
            if after < at <= until and standing(former, made_later, accepted_ms) == "belongs":
                now = known.now.get(former.id)
                if now is None:
                    ended.append(former)
                else:
                    existing.append(now)
        return Found(existing, ended)


class _Span(NamedTuple):
    """The state of a subscription for notifications stamped after `after`, up to `until`; see `standing`."""

    after: int
    until: int
    state: Subscription
    made_later: bool
    selected: tuple[TopicPath, ...]


class _FormerStates(Resolver):
    """Former states of changed subscriptions by selector; `last` is the position of each one's last change."""

    def __init__(self, recent: RecentChanges) -> None:
        super().__init__(0)
        self.reaches, changes, self.now = recent
        self.last: dict[str, int] = {}
        self._spans: dict[str, list[_Span]] = {}
        self._xpaths: dict[str, list[_Span]] = {}
        self._links = LinkIndex()
        self._by_topic: dict[TopicPath, list[_Span]] = {}
        by_id: dict[str, list[Change]] = {}
        for change in changes:
            by_id.setdefault(change.id, []).append(change)
        for name, own_changes in by_id.items():
            self.last[name] = own_changes[-1].position
            self._add(own_changes, self.now.get(name))

    def spans(self, topic: TopicPath, view: Resolver) -> Sequence[_Span]:
        """The states that match the topic. For an XPath with a current subscription the view has the selected
        topics."""
        found = self._by_topic.get(topic)
        if found is None:
            found = [span for selector in self.selectors_at(topic) for span in self._spans[selector]]
            if self._xpaths:
                selectors = set(view.selectors_at(topic))
                for selector, spans in self._xpaths.items():
                    formerly = any(topic in span.selected for span in spans)
                    found += spans if formerly or selector in selectors else ()
            if len(self._by_topic) >= _CACHED_TOPICS:
                self._by_topic.clear()
            self._by_topic[topic] = found
        return found

    def _add(self, changes: Sequence[Change], now: Subscription | None) -> None:
        after = -1
        for number, change in enumerate(changes):
            behind = changes[number + 1].before if number + 1 < len(changes) else now
            made_later = change.before is None
            state = behind if change.before is None else change.before
            if state is not None:
                self._keep(_Span(after, change.position, state, made_later, change.selected))
            after = change.position

    def _keep(self, span: _Span) -> None:
        selector = selector_of(span.state)
        normals = normals_of(span.state)
        if any(normal.startswith(XPATH_SCHEME) for normal in normals):
            self._xpaths.setdefault(selector, []).append(span)
            return
        if selector in self._spans:
            self._spans[selector].append(span)
            return
        if not is_simple(selector):
            try:
                definition = compile_selector(normals)
            except ExpressionError:
                return  # the table has logged it
            self._links.link(selector, definition)
        self._spans[selector] = [span]

    def _targets(self, key: str) -> Iterable[LinkTarget]:
        linked = self._links.at(key)
        return (*linked, LinkTarget(key)) if key in self._spans else linked

    def _active(self, selector: str) -> Answer:
        return tuple(span.state for span in self._spans[selector])

    def _rest_indexes(self) -> Iterable[RestIndex]:
        return (self._links.rest,) if self._links.rest else ()
