"""Steps: changes of a routing table in messages of bounded size, for long-lived views.

A view begins with a snapshot and the steps of `ViewSteps.opening`, and continues with those of `ViewSteps.steps`. The
cost of a step, here and in the view, depends on the changes since the previous step only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain

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
        recording: ExitStack,
        limit: int,
    ) -> None:
        self._checkpoint = checkpoint
        self._history = history
        self._subscriptions = subscriptions
        self._recorded = recorded
        self._recording = recording
        self._limit = limit
        self._version, self._kept = history.version, len(history)
        self._waiting: list[ViewStep] = []

    def opening(self) -> list[ViewStep]:
        """The steps from the base to the current state; at least one. Changes that `steps` has not returned yet are
        included; applying them twice is harmless."""
        self._waiting += self._since()
        position, *_ = self._recorded()
        return self._cut(position, self._checkpoint.overlay(), {}, self._history.since(0))

    def steps(self) -> list[ViewStep]:
        """The changes since the last call; none if only the position changed."""
        found = [*self._waiting, *self._since()]
        self._waiting = []
        return found

    def close(self) -> None:
        """Stop recording. Closing again does nothing."""
        self._recording.close()

    def _since(self) -> Sequence[ViewStep]:
        position, overlay, reselected = self._recorded()
        changes = self._history.since(self._version)
        forgotten = len(self._history) < self._kept
        self._version, self._kept = self._history.version, len(self._history)
        if not (overlay.size or reselected or changes or forgotten):
            return ()
        return self._cut(position, overlay, reselected, changes)

    def _cut(
        self, position: int, overlay: Overlay, reselected: dict[str, Reselection], changes: Sequence[Change]
    ) -> list[ViewStep]:
        """These changes in the smallest number of steps, in an order for piecewise application."""
        pieces = [_Piece()]

        def next_piece(*subscriptions: Subscription | None) -> _Piece:
            """The piece for a change that concerns these subscriptions."""
            weight = 1 + _characters(*subscriptions) // _USUAL
            if pieces[-1].weight and pieces[-1].weight + weight > self._limit:
                pieces.append(_Piece())
            pieces[-1].weight += weight
            return pieces[-1]

        for change in changes:
            next_piece(change.before, self._subscriptions.get(change.id)).changes.append(change)
        for selector, delta in overlay.members.items():
            present = {each.id: each for each in delta.present}
            for subscription_id in delta.touched:
                now = present.get(subscription_id)
                next_piece(now).members[selector][subscription_id] = now
        for selector, normals in overlay.linked.items():
            next_piece().linked[selector] = normals
        for selector, paths in overlay.selected.items():
            next_piece().selected[selector] = ()
            for path in paths:
                next_piece().gained[selector].append(path)
        for selector, each in reselected.items():
            for path in each.gained:
                next_piece().gained[selector].append(path)
            for path in each.lost:
                next_piece().lost[selector].append(path)
        *others, last = pieces
        return [*(self._step(None, overlay.base, piece) for piece in others), self._step(position, overlay.base, last)]

    def _step(self, control: int | None, base: str, piece: _Piece) -> ViewStep:
        members = {
            selector: Delta(frozenset(touched), tuple([each for each in touched.values() if each is not None]))
            for selector, touched in piece.members.items()
        }
        reselected = {
            selector: Reselection(tuple(piece.gained.get(selector, ())), tuple(piece.lost.get(selector, ())))
            for selector in piece.gained.keys() | piece.lost.keys()
        }
        ids = {change.id for change in piece.changes}
        now = tuple([found for each in ids if (found := self._subscriptions.get(each)) is not None])
        overlay = Overlay(base, members, piece.linked, piece.selected)
        return ViewStep(control, overlay, tuple(piece.changes), now, self._history.horizon, reselected)


@dataclass(slots=True)
class _Piece:
    """A growing step: subscriptions by selector and id (None: removed), and topics by XPath."""

    weight: int = 0
    changes: list[Change] = field(default_factory=list)
    members: defaultdict[str, dict[str, Subscription | None]] = field(default_factory=lambda: defaultdict(dict))
    linked: dict[str, tuple[str, ...]] = field(default_factory=dict)
    selected: dict[str, tuple[TopicPath, ...]] = field(default_factory=dict)
    gained: defaultdict[str, list[TopicPath]] = field(default_factory=lambda: defaultdict(list))
    lost: defaultdict[str, list[TopicPath]] = field(default_factory=lambda: defaultdict(list))


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
