"""A snapshot with later changes, queried like the table. `SteppedView` begins with a snapshot and follows the steps of
the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from arborcast.topic_model.records.notifications import UNSTAMPED, Notification
from arborcast.topic_model.routing.groups import Group
from arborcast.topic_model.routing.history import Found, History, Recipients
from arborcast.topic_model.routing.links import LinkIndex
from arborcast.topic_model.routing.members import Answer, replaced
from arborcast.topic_model.routing.overlay import Delta, Overlay
from arborcast.topic_model.routing.resolver import Resolver
from arborcast.topic_model.routing.rest import LinkTarget, RestIndex
from arborcast.topic_model.routing.selectors import Selector, compile_selector, is_one_topic, is_simple
from arborcast.topic_model.routing.steps import Reselection, ViewStep
from arborcast.topic_model.snapshot.base import Snapshot
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import TopicPath

# Changes of unused members after which their existence in the base is checked.
_PENDING = 1_000

# Maximum number of changes of the history that one step forgets: each costs some microseconds, while pushes wait. Later
# steps forget the rest.
_FORGOTTEN_AT_ONCE = 1_000


class SnapshotView(Resolver):
    """`match` answers as the table at the overlay. Create a view for each new overlay of a checkpoint, at a cost
    proportional to the overlay's size; unpacked parts stay with the snapshot. Or continue from an overlay with `change`
    for each step."""

    def __init__(self, snapshot: Snapshot, overlay: Overlay | None = None) -> None:
        """Raises ValueError if the overlay belongs to another snapshot."""
        super().__init__(100_000)
        self._snapshot = snapshot
        # By selector: differences to apply when the members are requested; the requested members; and those of them
        # with further changes.
        self._pending: dict[str, dict[str, Subscription | None]] = {}
        self._changed: dict[str, Answer] = {}
        self._changing: dict[str, _Changing] = {}
        self._linked: dict[str, Selector] = {}
        self._links = LinkIndex()
        self._selected: dict[str, set[TopicPath]] = {}  # XPath -> its topics, without those that the base has
        self._replaced: set[str] = set()  # XPaths whose selection in the base is obsolete
        self._lost: dict[str, set[str]] = {}  # topic -> XPaths of the base that no longer select it
        if overlay is not None:
            self.change(overlay, {})

    def change(self, overlay: Overlay, reselected: Mapping[str, Reselection]) -> None:
        """Apply changes. Raises ValueError if they belong to another snapshot."""
        if overlay.base != self._snapshot.base:
            raise ValueError(f"the overlay is for snapshot {overlay.base}, this one is {self._snapshot.base}")
        wide = bool(overlay.linked or overlay.selected)
        for selector, normals in overlay.linked.items():
            if normals:
                self._link(selector, normals)
            else:
                self._unlink(selector)
        for selector, paths in overlay.selected.items():
            self._unselect(selector)
            self._replaced.add(selector)
            for path in paths:
                self._gain(selector, path)
        for selector, each in reselected.items():
            for path in each.gained:
                self._gain(selector, path)
                self.forget(path)
            for path in each.lost:
                self._lose(selector, path)
                self.forget(path)
        for selector, delta in overlay.members.items():
            self._change_members(selector, delta)
            if is_simple(selector) and is_one_topic(selector):
                self.forget(selector)
            else:
                wide = True
        if wide:
            self.forget_all()

    def _change_members(self, selector: str, delta: Delta) -> None:
        if len(self._pending.get(selector, ())) > _PENDING:
            self._active(selector)
        changing = self._changing.get(selector)
        if changing is None and (changed := self._changed.pop(selector, None)) is not None:
            changing = self._changing[selector] = _Changing(changed)
        if changing is not None:
            changing.change(delta)
        else:
            pending = self._pending.setdefault(selector, {})
            pending.update(dict.fromkeys(delta.touched))
            pending.update((each.id, each) for each in delta.present)
        if not delta.present and not self._snapshot.has(selector):
            self._clean(selector)

    def _clean(self, selector: str) -> None:
        """Remove all traces of a selector that was added and removed."""
        if selector in self._pending:
            pending = self._pending.pop(selector)
            if any(pending.values()):
                self._pending[selector] = {name: each for name, each in pending.items() if each is not None}
        elif not self._changing[selector].known:
            del self._changing[selector]

    def _link(self, selector: str, normals: tuple[str, ...]) -> None:
        if selector not in self._linked:
            definition = self._linked[selector] = compile_selector(normals)
            self._links.link(selector, definition)

    def _unlink(self, selector: str) -> None:
        self._unselect(selector)
        self._replaced.discard(selector)
        definition = self._linked.pop(selector, None)
        if definition is not None:
            self._links.unlink(selector, definition)

    def _unselect(self, selector: str) -> None:
        for path in self._selected.pop(selector, ()):
            self._links.take(path, selector)

    def _gain(self, selector: str, path: TopicPath) -> None:
        if self._is_in_base(selector, path):
            lost = self._lost.get(path, set())
            lost.discard(selector)
            if not lost:
                self._lost.pop(path, None)
        else:
            self._selected.setdefault(selector, set()).add(path)
            self._links.put(path, LinkTarget(selector))

    def _lose(self, selector: str, path: TopicPath) -> None:
        if self._is_in_base(selector, path):
            self._lost.setdefault(path, set()).add(selector)
        elif path in (selected := self._selected.get(selector, set())):
            selected.remove(path)
            self._links.take(path, selector)

    def _is_in_base(self, selector: str, path: TopicPath) -> bool:
        if selector in self._replaced:
            return False
        return any(target.selector == selector for target in self._snapshot.links(path))

    def _targets(self, key: str) -> Iterable[LinkTarget]:
        lost = self._lost.get(key, ())
        found = [
            target
            for target in self._snapshot.links(key)
            if target.selector not in self._replaced and target.selector not in lost
        ]
        found.extend(self._links.at(key))
        if self._active(key):
            found.append(LinkTarget(key))
        return found

    def _active(self, selector: str) -> Answer:
        if (changing := self._changing.get(selector)) is not None:
            return changing.members()
        changed = self._changed.get(selector)
        if changed is None:
            members = self._snapshot.members(selector)
            pending = self._pending.pop(selector, None)
            if pending is None:
                return members
            present = [each for each in pending.values() if each is not None]
            changed = self._changed[selector] = replaced(members, pending, present)
        return changed

    def _rest_indexes(self) -> Iterable[RestIndex]:
        return [index for index in (self._snapshot.rest(), self._links.rest) if index]


class _Changing:
    """The members of a selector with frequent changes, each at the cost of a few members."""

    def __init__(self, members: Answer) -> None:
        self.known = {each.id: each for each in members}
        self._group = Group(members)

    def change(self, delta: Delta) -> None:
        for name in delta.touched:
            if (known := self.known.pop(name, None)) is not None:
                self._group.remove(known)
        for each in delta.present:
            self.known[each.id] = each
            self._group.add(each)

    def members(self) -> Answer:
        return self._group.active()


class SteppedView:
    """Answers as the table's `match` and `recipients` at the same position. For one thread. Memory is bounded by the
    base, the current subscriptions, and the table's history."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Usable once the opening steps are applied."""
        self.position = UNSTAMPED
        """The reached position of the control log."""
        self._base = snapshot.base
        self._view = SnapshotView(snapshot)
        self._pieces: list[ViewStep] = []
        self._history = History()
        # For subscriptions with history: the position of their last change, and those that exist.
        self._last: dict[str, int] = {}
        self._now: dict[str, Subscription] = {}
        self._recipients = self._recipients_of_now()

    def apply(self, step: ViewStep) -> None:
        """Apply the next step. A step with following parts takes effect with the last of them. Raises ValueError for a
        step of another base, which needs a new view."""
        if step.base != self._base:
            raise ValueError(f"the step is for snapshot {step.base}, this view began with {self._base}")
        self._pieces.append(step)
        if step.control is None:
            return
        changed = False
        for each in self._pieces:
            if each.overlay.size or each.reselected:
                self._view.change(each.overlay, each.reselected)
                changed = True
            changed |= self._remember(each)
        self._pieces.clear()
        self.position = step.control
        if changed:
            self._recipients = self._recipients_of_now()

    def match(self, path: TopicPath) -> Answer:
        """The active subscriptions that match this topic."""
        return self._view.match(path)

    def of(self, notification: Notification) -> Found:
        """The recipients of a notification; see `Recipients.of`. Its stamp must not be after the view's position."""
        return self._recipients.of(notification)

    def _remember(self, step: ViewStep) -> bool:
        now = {each.id: each for each in step.now}
        version = self._history.version
        for change in step.changes:
            if change.position < max(self._history.newest, self._history.horizon):
                continue  # part of the opening
            if self._last.get(change.id, -1) == change.position:
                continue  # also part of the opening; other subscriptions may have changed at the same position
            self._history.add(change)
            self._last[change.id] = change.position
            if change.id in now:
                self._now[change.id] = now[change.id]
            else:
                self._now.pop(change.id, None)
        forgotten = self._history.forget(step.horizon, _FORGOTTEN_AT_ONCE)
        for change in forgotten:
            if self._last[change.id] == change.position:
                del self._last[change.id]
                self._now.pop(change.id, None)
        return bool(forgotten) or self._history.version != version

    def _recipients_of_now(self) -> Recipients:
        history, now = self._history, self._now
        return Recipients(self._view, history.newest, lambda at: history.recent(at, now))
