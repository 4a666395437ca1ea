"""The order of waiting names, by class. Pure."""

from __future__ import annotations

from collections import OrderedDict

# Every eighth turn is for the lowest class.
_LOWEST_EACH = 8


class Turns:
    """Waiting names: the highest class first, in a class in the order of arrival. Every eighth turn is for the lowest
    class, so no name starves."""

    def __init__(self) -> None:
        # Ordered, and accessible by name: when ten thousand end together, each leaves from the middle.
        self._classes: dict[int, OrderedDict[str, None]] = {}
        self._turns = 0

    def __bool__(self) -> bool:
        return bool(self._classes)

    def add(self, name: str, priority: int) -> None:
        """Add a name; one that waits already keeps its place."""
        self._classes.setdefault(priority, OrderedDict())[name] = None

    def take(self) -> str:
        """Remove and return the next name; at least one must wait."""
        self._turns += 1
        priority = min(self._classes) if self._turns % _LOWEST_EACH == 0 else max(self._classes)
        name, _ = self._classes[priority].popitem(last=False)
        if not self._classes[priority]:
            del self._classes[priority]
        return name

    def remove(self, name: str, priority: int) -> None:
        waiting = self._classes[priority]
        del waiting[name]
        if not waiting:
            del self._classes[priority]
