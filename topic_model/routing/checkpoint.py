"""Checkpoints: the moment from which a routing table's changes are recorded, and a frozen copy of that moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from topic_model.routing.groups import Entry, LinkedGroup, active_of, members_of
from topic_model.routing.members import Answer
from topic_model.routing.overlay import Overlay
from topic_model.routing.rest import LinkTarget
from topic_model.routing.selectors import normals_of


@dataclass(frozen=True)
class Frozen:
    """What a snapshot is made of. Immutable, so it may be read by another thread while the table goes on."""

    base: str
    active: dict[str, Answer]
    links: dict[str, tuple[LinkTarget, ...]]
    rest: dict[str, tuple[str, ...]]  # selectors with steps below an anchor -> the normal forms behind them


class Checkpoint:
    """Made by `RoutingTable.checkpoint`. Several may be open, each recording for itself until it is closed.

    `frozen` is there until it has been taken; `overlay` is the table's difference from it at any later time.
    """

    def __init__(
        self,
        base: str,
        entries: Mapping[str, Entry],
        links: dict[str, tuple[LinkTarget, ...]],
        overlay: Callable[[], Overlay],
        close: Callable[[], None],
    ) -> None:
        self.base = base
        self._overlay = overlay
        self._close: Callable[[], None] | None = close
        self._frozen: Frozen | None = Frozen(
            base,
            {selector: active for selector, entry in entries.items() if (active := active_of(entry))},
            links,
            {
                selector: normals_of(next(members_of(entry)))
                for selector, entry in entries.items()
                if isinstance(entry, LinkedGroup) and entry.definition and any(entry.definition.rest_alternatives())
            },
        )

    def take(self) -> Frozen:
        """The frozen copy, once: it is as large as the table's index, and nobody needs it after the snapshot."""
        if self._frozen is None:
            raise ValueError(f"the frozen copy of checkpoint {self.base} has been taken: make a new checkpoint")
        frozen, self._frozen = self._frozen, None
        return frozen

    def overlay(self) -> Overlay:
        """What the table has changed since; the same object when nothing has since the last call."""
        return self._overlay()

    def close(self) -> None:
        """Stop recording. Closing again does nothing."""
        if self._close is not None:
            self._close()
            self._close = None
