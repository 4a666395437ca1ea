"""Whom a notification belongs to: the subscriptions that were there, active and not over when it was accepted.

A gateway stamps what it accepts with the position of its view in the control log. It is matched later, by a view that
is newer: meanwhile subscriptions were made, renewed, paused, resumed or ended. A history remembers what those that
changed lately were before, and so each is asked as it was at the notification's position. When nothing has changed
since, which is nearly always so, that costs one comparison of numbers.

XPaths are the exception: what they select is asked of the topics of now.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from topic_model.errors import ExpressionError
from topic_model.notifications import Notification
from topic_model.patterns import XPATH_SCHEME
from topic_model.routing.resolver import Answer, Resolver
from topic_model.routing.rest import RestIndex, Target
from topic_model.routing.selectors import compile_selector, is_simple, normals_of, selector_of
from topic_model.subscriptions import Subscription
from topic_model.topics import TopicPath

Standing = Literal["belongs", "made later", "paused", "over"]
"""How a subscription stood when a notification was accepted."""

# Answers that are kept of what changed; it is asked anew after every change.
_TOPICS_REMEMBERED = 10_000

# An index holds more changes than it was made for, as many again and at least so many: the next position may lie a
# little further back.
_SPARE = 64


def standing(subscription: Subscription, made_later: bool, accepted_ms: int) -> Standing:
    """Whether a notification accepted then belongs to a subscription that matches its topic: the one rule, for the
    dispatch and for whoever checks it.

    `subscription` is what it was at the position that the notification is stamped with, or, `made_later`, what it was
    when it was made behind that position. Then its time decides: the stamp is that of one gateway's view, and another
    gateway may have answered the Subscribe before it; and what compaction has left of a log says of a subscription that
    it was made with the record that is left.
    """
    if made_later and subscription.created_ms >= accepted_ms:
        return "made later"
    if not subscription.receives:
        return "paused"
    return "over" if subscription.expired(accepted_ms) else "belongs"


class Change(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a subscription was `before` the record at this position of the control log; None when it was not there.

    `selected` are the topics of an XPath that nobody else subscribes to, when this is the end of it.
    """

    position: int
    id: str
    before: Subscription | None = None
    selected: tuple[TopicPath, ...] = ()


Recent = tuple[Sequence[Change], Mapping[str, Subscription]]
"""Changes in order, and subscriptions of now: at least those that changed, without those that ended."""


class _Past(msgspec.Struct, frozen=True, array_like=True):
    changes: Sequence[Change] = ()
    now: Sequence[Subscription] = ()


class PackedPast(msgspec.Struct, frozen=True):
    """A past as it travels to the workers, most of whom never have to look into it. `newest` is the position of the
    last change, -1 when there is none."""

    newest: int = -1
    data: bytes = b""

    def open(self) -> Recent:
        """What is in it."""
        past = _past_decoder.decode(self.data) if self.data else _Past()
        return past.changes, {each.id: each for each in past.now}


_past_encoder = msgspec.msgpack.Encoder()
_past_decoder = msgspec.msgpack.Decoder(_Past)


class History:
    """What a routing table has changed from the position `horizon` on. Memory is that of these changes."""

    def __init__(self, horizon: int = 0) -> None:
        self._horizon = horizon
        self._changes: list[Change] = []
        self.version = 0
        """Grows with every change."""

    def __len__(self) -> int:
        return len(self._changes)

    def add(self, change: Change) -> None:
        """The next change."""
        if change.position >= self._horizon:
            self._changes.append(change)
            self.version += 1

    def forget(self, position: int) -> None:
        """Nothing will be asked that was accepted before this position. If it is, what is known of the oldest time
        stands for it."""
        if position > self._horizon:
            self._horizon = position
            del self._changes[: bisect_left(self._changes, position, key=_position)]

    @property
    def newest(self) -> int:
        """The position of the last change, -1 when there is none."""
        return self._changes[-1].position if self._changes else -1

    @property
    def changes(self) -> Sequence[Change]:
        """In the order of their positions; not to be changed."""
        return self._changes

    def packed(self, subscriptions: Mapping[str, Subscription]) -> PackedPast:
        """What changed, beside the subscriptions of now, for the workers."""
        if not self._changes:
            return PackedPast()
        ids = dict.fromkeys(change.id for change in self._changes)
        now = [found for each in ids if (found := subscriptions.get(each)) is not None]
        return PackedPast(self.newest, _past_encoder.encode(_Past(self._changes, now)))


def _position(change: Change) -> int:
    return change.position


class Recipient(NamedTuple):
    """A subscription that a notification belongs to: as it is now or, when it has `ended` since, as it was."""

    subscription: Subscription
    ended: bool = False


class Recipients:
    """Whom notifications belong to, by a view of now and what has changed lately, up to the position `newest`.

    Made anew when the view changes.
    """

    def __init__(self, view: Resolver, newest: int, recent: Callable[[], Recent]) -> None:
        self.view = view
        self._newest = newest
        self._open = recent
        self._recent: Recent | None = None
        self._known: _Known | None = None
        self._reaches = 0

    @classmethod
    def packed(cls, view: Resolver, past: PackedPast) -> Recipients:
        """With a past that has travelled."""
        return cls(view, past.newest, past.open)

    def of(self, notification: Notification) -> Iterator[Recipient]:
        """To be asked of a view that has come at least as far as the position that the notification is stamped with.
        One without a stamp belongs to those whom the view has."""
        at, accepted_ms, only = notification.control, notification.accepted_ms, notification.only
        found = self.view.match(notification.topic)
        if not 0 <= at <= self._newest:
            for subscription in found:
                if not subscription.expired(accepted_ms) and (not only or only == subscription.id):
                    yield Recipient(subscription)
            return
        known = self._known_at(at)
        for subscription in found:
            if (
                known.last.get(subscription.id, -1) < at
                and not subscription.expired(accepted_ms)
                and (not only or only == subscription.id)
            ):
                yield Recipient(subscription)
        for span in known.spans(notification.topic, self.view):
            was = span.state
            if (
                span.after < at <= span.until
                and standing(was, span.made_later, accepted_ms) == "belongs"
                and (not only or only == was.id)
            ):
                now = known.now.get(was.id)
                yield Recipient(was, True) if now is None else Recipient(now)

    def _known_at(self, at: int) -> _Known:
        """The changes at this position and behind it, and perhaps some before."""
        if self._known is None or at < self._reaches:
            if self._recent is None:
                self._recent = self._open()
            changes, now = self._recent
            first = bisect_left(changes, at, key=_position)
            first = max(0, first - max(_SPARE, len(changes) - first))
            self._reaches = changes[first - 1].position + 1 if first else 0
            self._known = _Known(changes[first:], now)
        return self._known


class _Span(NamedTuple):
    """What a subscription was for notifications stamped behind `after`, up to `until`; see `standing`."""

    after: int
    until: int
    state: Subscription
    made_later: bool
    selected: tuple[TopicPath, ...]


class _Known(Resolver):
    """Subscriptions that have changed, as they were, by what they select; `last` is where each changed last."""

    def __init__(self, changes: Sequence[Change], now: Mapping[str, Subscription]) -> None:
        super().__init__(0)
        self.now = now
        self.last: dict[str, int] = {}
        self._spans: dict[str, list[_Span]] = {}
        self._xpaths: dict[str, list[_Span]] = {}
        self._links: defaultdict[str, list[Target]] = defaultdict(list)
        self._rest = RestIndex()
        self._by_topic: dict[TopicPath, list[_Span]] = {}
        of_each: dict[str, list[Change]] = {}
        for change in changes:
            of_each.setdefault(change.id, []).append(change)
        for name, theirs in of_each.items():
            self.last[name] = theirs[-1].position
            self._add(theirs, self.now.get(name))

    def spans(self, topic: TopicPath, view: Resolver) -> Sequence[_Span]:
        """The states that match the topic. For an XPath that is still subscribed to the view knows what it selects."""
        found = self._by_topic.get(topic)
        if found is None:
            found = [span for selector in self.selectors_at(topic) for span in self._spans[selector]]
            if self._xpaths:
                selectors = set(view.selectors_at(topic))
                for selector, spans in self._xpaths.items():
                    gone = any(topic in span.selected for span in spans)
                    found += spans if gone or selector in selectors else ()
            if len(self._by_topic) >= _TOPICS_REMEMBERED:
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
            target = Target(selector, definition.others)
            for key in definition.simple_keys():
                self._links[key].append(target)
            for alternative in definition.rest_alternatives():
                self._rest.add(target, alternative)
        self._spans[selector] = [span]

    def _targets(self, key: str) -> Iterable[Target]:
        linked = self._links.get(key, ())
        return (*linked, Target(key)) if key in self._spans else linked

    def _active(self, selector: str) -> Answer:
        return tuple(span.state for span in self._spans[selector])

    def _rest_indexes(self, node: TopicPath) -> Iterable[RestIndex]:
        return (self._rest,) if self._rest else ()
