"""Whose turn is next among those that wait, by class. Pure."""

from __future__ import annotations

from collections import OrderedDict

# How often the lowest class has its turn.
_LOWEST_EACH = 8


class Turns:
    """Waiting names: the highest class first, within one in the order of arrival. Every eighth turn goes to the lowest
    class, so none starves."""

    def __init__(self) -> None:
        # In order, and found by name: when ten thousand end together, each leaves from the middle.
        self._classes: dict[int, OrderedDict[str, None]] = {}
        self._given = 0

    def __bool__(self) -> bool:
        return bool(self._classes)

    def add(self, name: str, priority: int) -> None:
        """Let a name wait; one that waits already keeps its place."""
        waiting = self._classes.get(priority)
        if waiting is None:
            waiting = self._classes[priority] = OrderedDict()
        waiting[name] = None

    def take(self) -> str:
        """Remove and return the name whose turn it is; one has to wait."""
        self._given += 1
        priority = min(self._classes) if self._given % _LOWEST_EACH == 0 else max(self._classes)
        name, _ = self._classes[priority].popitem(last=False)
        if not self._classes[priority]:
            del self._classes[priority]
        return name

    def remove(self, name: str, priority: int) -> None:
        waiting = self._classes[priority]
        del waiting[name]
        if not waiting:
            del self._classes[priority]
