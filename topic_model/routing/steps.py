"""Steps: changes of a routing table in messages of bounded size, for long-lived views.

A view begins with a snapshot and the steps of `ViewSteps.opening`, and continues with those of `ViewSteps.steps`. The
cost of a step, here and in the view, depends on the changes since the previous step only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from arborcast.topic_model.routing.history import Change, History
from arborcast.topic_model.routing.overlay import Checkpoint, Delta, Overlay, SelectorChanges
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import TopicPath

STEP_LIMIT = 200
"""Changes in a step: some hundred kB. A large subscription counts as several."""

# Characters of a subscription that count as one change.
_USUAL = 2_048


class Reselection(msgspec.Struct, frozen=True, array_like=True):
    """Newly selected topics of an XPath, and topics that it no longer selects."""

    gained: tuple[TopicPath, ...] = ()
    lost: tuple[TopicPath, ...] = ()


class ViewStep(msgspec.Struct, frozen=True, array_like=True):
    """The changes since the previous step.

    `control` is the position of the control log after it, None if the next step belongs to the same change. `overlay`
    has the differences: `members` are removed and inserted; `linked` are new selectors with their normal forms, or
    selectors that lost their last member with none; `selected` are the topics of a new XPath, or of one without
    members; `reselected` are changed selections of known XPaths. `changes` are new changes of the history, `now` the
    current subscriptions of these changes (a missing one has ended), `horizon` the position before which the history is
    forgotten.
    """

    control: int | None
    overlay: Overlay
    changes: tuple[Change, ...] = ()
    now: tuple[Subscription, ...] = ()
    horizon: int = 0
    reselected: dict[str, Reselection] = {}

    @property
    def base(self) -> str:
        """The snapshot of the step."""
        return self.overlay.base


Recorded = tuple[int, Overlay, dict[str, Reselection]]
"""A table's position, and its changes since the last request."""


class StepChanges(SelectorChanges):
    """Records changes after a step."""

    def __init__(self, base: str, xpaths: frozenset[str]) -> None:
        super().__init__(base, xpaths)
        self._emptied: set[str] = set()  # older selectors that lost their last member
        self._reselected: dict[str, dict[str, bool]] = {}

    def unlinked(self, selector: str) -> None:
        """The selector's last member was removed."""
        if selector in self._linked:
            del self._linked[selector]
        elif selector in self._selected:
            self._selected.remove(selector)
        else:
            self._emptied.add(selector)
            self._reselected.pop(selector, None)

    def selection_changed(self, selector: str, gained: Iterable[str], lost: Iterable[str]) -> None:
        """An XPath selector selects other topics."""
        if selector in self._selected:
            return
        changed = self._reselected.setdefault(selector, {})
        for path, is_selected in chain(((path, True) for path in gained), ((path, False) for path in lost)):
            if changed.pop(path, is_selected) is is_selected:
                changed[path] = is_selected

    def take(
        self, subscriptions: Mapping[str, Subscription], selection: Callable[[str], tuple[TopicPath, ...] | None]
    ) -> tuple[Overlay, dict[str, Reselection]]:
        """The recorded changes, with the current state; the recording restarts."""
        overlay = Overlay(
            self._base,
            self.deltas(subscriptions),
            dict.fromkeys(self._emptied - self._xpaths, ()) | self._linked,
            dict.fromkeys(self._emptied & self._xpaths, ()) | {each: selection(each) or () for each in self._selected},
        )
        reselected = {
            selector: Reselection(
                tuple([TopicPath(path) for path, is_selected in changed.items() if is_selected]),
                tuple([TopicPath(path) for path, is_selected in changed.items() if not is_selected]),
            )
            for selector, changed in self._reselected.items()
            if changed
        }
        self.clear()
        for collection in (self._linked, self._selected, self._emptied, self._reselected):
            collection.clear()
        return overlay, reselected


class ViewSteps:
    """Created by `RoutingTable.steps`; records until it is closed, and not after its checkpoint. For the thread that
    changes the table, which must report the position of each record."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        history: History,
        subscriptions: Mapping[str, Subscription],
        recorded: Callable[[], Recorded],
        close: Callable[[], None],
        limit: int,
    ) -> None:
        self._checkpoint = checkpoint
        self._history = history
        self._subscriptions = subscriptions
        self._recorded = recorded
        self._close: Callable[[], None] | None = close
        self._limit = limit
        self._version, self._kept = history.version, len(history)
        self._waiting: list[ViewStep] = []

    def opening(self) -> list[ViewStep]:
        """The steps from the base to the current state; at least one. Changes that `steps` has not returned yet are
        included; applying them twice is harmless."""
        self._waiting += self._since()
        position, *_ = self._recorded()
        return list(self._cut(position, self._checkpoint.overlay(), {}, self._history.since(0)))

    def steps(self) -> list[ViewStep]:
        """The changes since the last call; none if only the position changed."""
        found = [*self._waiting, *self._since()]
        self._waiting = []
        return found

    def close(self) -> None:
        """Stop recording. Closing again does nothing."""
        if self._close is not None:
            self._close()
            self._close = None

    def _since(self) -> Iterable[ViewStep]:
        position, overlay, reselected = self._recorded()
        changes = self._history.since(self._version)
        forgotten = len(self._history) < self._kept
        self._version, self._kept = self._history.version, len(self._history)
        if not (overlay.size or reselected or changes or forgotten):
            return ()
        return self._cut(position, overlay, reselected, changes)

    def _cut(
        self, position: int, overlay: Overlay, reselected: dict[str, Reselection], changes: Sequence[Change]
    ) -> Iterator[ViewStep]:
        if sum(map(self._weight, _parts(overlay, reselected, changes))) <= self._limit:
            yield ViewStep(position, overlay, tuple(changes), self._now(changes), self._history.horizon, reselected)
            return
        parts: list[_Part] = []
        size = 0
        for part in _parts(overlay, reselected, changes):
            weight = self._weight(part)
            if parts and size + weight > self._limit:
                yield self._of_parts(None, overlay.base, parts)
                parts, size = [], 0
            parts.append(part)
            size += weight
        yield self._of_parts(position, overlay.base, parts)

    def _weight(self, part: _Part) -> int:
        match part:
            case Change():
                return 1 + _characters(part.before, self._subscriptions.get(part.id)) // _USUAL
            case _Touched():
                return 1 + _characters(part.now) // _USUAL
            case _:
                return 1

    def _of_parts(self, control: int | None, base: str, parts: Iterable[_Part]) -> ViewStep:
        touched: dict[str, dict[str, Subscription | None]] = {}
        linked: dict[str, tuple[str, ...]] = {}
        selected: dict[str, tuple[TopicPath, ...]] = {}
        gained: dict[str, list[TopicPath]] = {}
        lost: dict[str, list[TopicPath]] = {}
        changes = []
        for part in parts:
            match part:
                case Change():
                    changes.append(part)
                case _Touched(selector, subscription_id, now):
                    touched.setdefault(selector, {})[subscription_id] = now
                case _Linked(selector, normals):
                    linked[selector] = normals
                case _Selecting(selector):
                    selected[selector] = ()
                case _Selected(selector, path, True):
                    gained.setdefault(selector, []).append(path)
                case _Selected(selector, path, _):
                    lost.setdefault(selector, []).append(path)
        members = {
            selector: Delta(frozenset(members), tuple([each for each in members.values() if each is not None]))
            for selector, members in touched.items()
        }
        reselected = {
            selector: Reselection(tuple(gained.get(selector, ())), tuple(lost.get(selector, ())))
            for selector in gained.keys() | lost.keys()
        }
        overlay = Overlay(base, members, linked, selected)
        return ViewStep(control, overlay, tuple(changes), self._now(changes), self._history.horizon, reselected)

    def _now(self, changes: Iterable[Change]) -> tuple[Subscription, ...]:
        ids = {change.id for change in changes}
        return tuple([found for each in ids if (found := self._subscriptions.get(each)) is not None])


def _characters(*subscriptions: Subscription | None) -> int:
    """The number of characters in the fields of unbounded length."""
    return sum(
        len(text)
        for each in subscriptions
        if each is not None
        for text in (
            *each.consumer.reference_parameters,
            *each.consumer.metadata,
            *[condition.text for condition in (*each.content, *each.producer)],
            *[topic.text for topic in each.topics],
        )
    )


class _Touched(NamedTuple):
    selector: str
    id: str
    now: Subscription | None


class _Linked(NamedTuple):
    selector: str
    normals: tuple[str, ...]


class _Selecting(NamedTuple):
    selector: str


class _Selected(NamedTuple):
    selector: str
    path: TopicPath
    is_selected: bool


_Part = Change | _Touched | _Linked | _Selecting | _Selected


def _parts(overlay: Overlay, reselected: Mapping[str, Reselection], changes: Iterable[Change]) -> Iterator[_Part]:
    """The smallest parts of a step, in an order for piecewise application."""
    yield from changes
    for selector, delta in overlay.members.items():
        present = {each.id: each for each in delta.present}
        for subscription_id in delta.touched:
            yield _Touched(selector, subscription_id, present.get(subscription_id))
    for selector, normals in overlay.linked.items():
        yield _Linked(selector, normals)
    for selector, paths in overlay.selected.items():
        yield _Selecting(selector)
        for path in paths:
            yield _Selected(selector, path, True)
    for selector, changed in reselected.items():
        for path in changed.gained:
            yield _Selected(selector, path, True)
        for path in changed.lost:
            yield _Selected(selector, path, False)
