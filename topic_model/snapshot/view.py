"""A snapshot and an overlay, asked like the table that they came from."""

from __future__ import annotations

from collections.abc import Iterable

from topic_model.routing.members import Answer, replaced
from topic_model.routing.overlay import Overlay
from topic_model.routing.resolver import Resolver
from topic_model.routing.rest import RestIndex, Target
from topic_model.routing.selectors import compile_selector
from topic_model.snapshot.base import Snapshot, rest_index
from topic_model.topics import TopicPath


class SnapshotView(Resolver):
    """`match` answers what the table's did when the overlay was taken.

    Make a new view for each new overlay: that costs what the overlay holds, and what was unpacked of the snapshot
    stays with the snapshot.
    """

    def __init__(self, snapshot: Snapshot, overlay: Overlay | None = None, remembered_answers: int = 100_000) -> None:
        """Raises ValueError when the overlay belongs to another snapshot."""
        super().__init__(remembered_answers)
        if overlay is not None and overlay.base != snapshot.base:
            raise ValueError(f"the overlay is for snapshot {overlay.base}, this one is {snapshot.base}")
        self._snapshot = snapshot
        self._overlay = overlay or Overlay(snapshot.base)
        self._changed: dict[str, Answer] = {}
        self._links: dict[str, list[Target]] = {}
        for selector, normals in self._overlay.linked.items():
            definition = compile_selector(normals)
            for key in definition.simple_keys():
                self._links.setdefault(key, []).append(Target(selector, definition.others))
        for selector, paths in self._overlay.selected.items():
            for path in paths:
                self._links.setdefault(path, []).append(Target(selector))
        self._rest = rest_index(self._overlay.linked)

    def _targets(self, key: str) -> Iterable[Target]:
        found = [target for target in self._snapshot.links(key) if target.selector not in self._overlay.selected]
        found.extend(self._links.get(key, ()))
        if self._active(key):
            found.append(Target(key))
        return found

    def _active(self, selector: str) -> Answer:
        delta = self._overlay.members.get(selector)
        if delta is None:
            return self._snapshot.members(selector)
        changed = self._changed.get(selector)
        if changed is None:
            members = self._snapshot.members(selector)
            changed = self._changed[selector] = replaced(members, delta.touched, delta.present)
        return changed

    def _rest_indexes(self, node: TopicPath) -> Iterable[RestIndex]:
        return [index for index in (self._snapshot.rest(), self._rest) if index]
