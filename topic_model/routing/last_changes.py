"""The positions of the control log at which the recipients of a topic last changed."""

from __future__ import annotations

from arborcast.topic_model.patterns.alternatives import anchors_above
from arborcast.topic_model.routing.selectors import anchor_of, is_one_topic, is_simple
from arborcast.topic_model.topics import TopicPath

# Older changes are merged into one position; requests concern the latest ones.
_MAX_ENTRIES = 2_000


class LastChanges:
    """Positions after the last change, by the topics that the change can concern. A position may be too late, never too
    early."""

    def __init__(self) -> None:
        self._of_all = 0
        self._topics: dict[str, int] = {}
        self._below: dict[str, int] = {}  # by anchors of selectors with a wildcard

    def of(self, path: TopicPath) -> int:
        """The position after the last change that can concern this topic, 0 for none."""
        last = max(self._of_all, self._topics.get(path, 0))
        if self._below:
            for anchor in (path, *anchors_above(path)):
                last = max(last, self._below.get(anchor, 0))
        return last

    def of_selector(self, selector: str, position: int) -> None:
        """A subscription with this selector was added, removed or changed."""
        if not is_simple(selector):
            self.of_all(position)
        elif is_one_topic(selector):
            self._topics[selector] = position
        else:
            self._below[anchor_of(selector)] = position
        if len(self._topics) + len(self._below) > _MAX_ENTRIES:
            self.of_all(position)

    def of_all(self, position: int) -> None:
        """A change that can concern every topic."""
        self._of_all = position
        self._topics.clear()
        self._below.clear()
