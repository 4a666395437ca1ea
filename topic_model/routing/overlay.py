"""Checkpoints and overlays: a frozen copy of a routing table, for a snapshot, and the table's later changes, small
enough for every batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import msgspec

from arborcast.topic_model.routing.groups import Entry, LinkedGroup, active_of, members_of
from arborcast.topic_model.routing.members import Answer
from arborcast.topic_model.routing.rest import LinkTarget
from arborcast.topic_model.routing.selectors import normals_of, selector_of
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import TopicPath


class Delta(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The difference of a selector's active members: remove the `touched`, insert the `present`."""

    touched: frozenset[str]
    present: tuple[Subscription, ...]


class Overlay(msgspec.Struct, frozen=True, array_like=True):
    """All differences from the snapshot `base`. `members` by selector; `linked` has the normal forms of each newer
    selector that is not simple; `selected` the topics of each XPath selector with a changed selection. Pickled through
    MessagePack, in a fifth of the size and time."""

    base: str
    members: dict[str, Delta] = {}
    linked: dict[str, tuple[str, ...]] = {}
    selected: dict[str, tuple[TopicPath, ...]] = {}

    @property
    def size(self) -> int:
        """The number of differences; with many, a new base is due."""
        return sum(len(delta.touched) for delta in self.members.values()) + len(self.linked) + len(self.selected)

    def packed_size(self) -> int:
        """The size of the encoded overlay. Costs as much as sending it."""
        return len(_encoder.encode(self))

    def __reduce__(self) -> tuple[Callable[[bytes], Overlay], tuple[bytes]]:
        return decode_overlay, (_encoder.encode(self),)


_encoder = msgspec.msgpack.Encoder()


def decode_overlay(data: bytes) -> Overlay:
    return _decoder.decode(data)


_decoder = msgspec.msgpack.Decoder(Overlay)


class SelectorChanges:
    """Records added, removed and changed members of selectors, and new selectors. Memory is bounded by the initial and
    the current members: a subscription that was added and removed in between leaves no trace. `xpaths` are the XPath
    selectors of the base."""

    def __init__(self, base: str, xpaths: frozenset[str]) -> None:
        self._base = base
        self._xpaths = xpaths
        self._linked: dict[str, tuple[str, ...]] = {}  # new selectors
        self._selected: set[str] = set()  # new XPaths
        self._touched: dict[str, set[str]] = {}  # selector -> subscription ids
        self._where: dict[str, tuple[str, ...]] = {}  # subscription id -> selectors
        self._born: set[str] = set()
        self._pending: set[str] = set()
        self._deltas: dict[str, Delta] = {}
        self._changed = False

    def touch(self, selector: str, subscription_id: str, born: bool = False) -> None:
        """A member of this selector was added, removed or changed."""
        self._changed = True
        if born and subscription_id not in self._where:
            self._born.add(subscription_id)
        where = self._where.get(subscription_id, ())
        if selector not in where:
            self._where[subscription_id] = (*where, selector)
            self._touched.setdefault(selector, set()).add(subscription_id)
        self._pending.add(selector)

    def ended(self, subscription_id: str) -> None:
        """The subscription ended, after `touch`. A subscription that the base does not have leaves no trace."""
        if subscription_id not in self._born:
            return
        self._born.remove(subscription_id)
        for selector in self._where.pop(subscription_id):
            touched = self._touched[selector]
            touched.remove(subscription_id)
            if not touched:
                del self._touched[selector]
                if selector not in self._deltas:
                    self._pending.discard(selector)

    def linked(self, selector: str, normals: tuple[str, ...], selects: bool) -> None:
        """A selector that is not simple has its first member; `selects`: it is an XPath."""
        self._changed = True
        if selects:
            self._selected.add(selector)
        else:
            self._linked[selector] = normals

    def deltas(self, subscriptions: Mapping[str, Subscription]) -> dict[str, Delta]:
        """The changes so far, by selector. Only selectors touched since the last call are examined."""
        for selector in self._pending:
            self._renew(selector, subscriptions)
        self._pending.clear()
        return dict(self._deltas)

    def clear(self) -> None:
        """Restart the recording."""
        for collection in (self._touched, self._where, self._born, self._pending, self._deltas):
            collection.clear()

    def _renew(self, selector: str, subscriptions: Mapping[str, Subscription]) -> None:
        touched = self._touched.get(selector)
        if not touched:
            self._deltas.pop(selector, None)
            return
        now = (subscriptions.get(subscription_id) for subscription_id in sorted(touched))
        present = (each for each in now if each is not None and each.receives and selector_of(each) == selector)
        self._deltas[selector] = Delta(frozenset(touched), tuple(present))


class OverlayChanges(SelectorChanges):
    """Records changes after a checkpoint. `_selected` has changed XPaths of the base, too."""

    def __init__(self, base: str, xpaths: frozenset[str]) -> None:
        super().__init__(base, xpaths)
        self._overlay = Overlay(base)

    def unlinked(self, selector: str) -> None:
        """The selector's last member was removed. Paths linked by the base then have no members and need no entry.
        Topics selected by an XPath need one, since the history uses the selection."""
        self._linked.pop(selector, None)
        if selector in self._xpaths:
            self._selected.add(selector)
        else:
            self._selected.discard(selector)
        self._changed = True

    def selection_changed(self, selector: str, gained: Collection[str], lost: Collection[str]) -> None:
        """An XPath selector selects other topics."""
        self._selected.add(selector)
        self._changed = True

    def overlay(
        self, subscriptions: Mapping[str, Subscription], selection: Callable[[str], tuple[TopicPath, ...] | None]
    ) -> Overlay:
        """The changes so far; the same object until another change."""
        if self._changed:
            self._changed = False
            selected = {selector: selection(selector) or () for selector in self._selected}
            self._overlay = Overlay(self._base, self.deltas(subscriptions), dict(self._linked), selected)
        return self._overlay


@dataclass(frozen=True)
class SnapshotInput:
    """The input of a snapshot. Immutable, so another thread may read it."""

    base: str
    active: dict[str, Answer]
    links: dict[str, tuple[LinkTarget, ...]]
    rest: dict[str, tuple[str, ...]]  # selectors with steps below an anchor -> their normal forms


class Checkpoint:
    """Created by `RoutingTable.checkpoint`. Several may be open, each recording until it is closed. `frozen` exists
    until it is taken; `overlay` is the table's later difference from it."""

    def __init__(
        self,
        base: str,
        entries: Mapping[str, Entry],
        links: dict[str, tuple[LinkTarget, ...]],
        xpaths: frozenset[str],
        overlay: Callable[[], Overlay],
        recording: ExitStack,
    ) -> None:
        self.base = base
        self.xpaths = xpaths
        """The existing XPath selectors."""
        self.overlay = overlay
        """Returns the table's changes since the checkpoint; the same object until another change."""
        self._recording = recording
        self._frozen: SnapshotInput | None = SnapshotInput(
            base,
            {selector: active for selector, entry in entries.items() if (active := active_of(entry))},
            links,
            {
                selector: normals_of(next(members_of(entry)))
                for selector, entry in entries.items()
                if isinstance(entry, LinkedGroup) and any(entry.definition.rest_alternatives())
            },
        )

    def take(self) -> SnapshotInput:
        """The frozen copy, once: it is as large as the table's index and not needed after the snapshot."""
        if self._frozen is None:
            raise ValueError(f"the frozen copy of checkpoint {self.base} was already taken: make a new checkpoint")
        frozen, self._frozen = self._frozen, None
        return frozen

    def close(self) -> None:
        """Stop recording. Closing again does nothing."""
        self._recording.close()
