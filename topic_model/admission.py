"""Open topic sets: may a first notification on an unknown topic add it?

Topics cost memory in every process and an entry in the directory, and notifications come from anyone: without bounds
a publisher with a counter in its topic names would fill the tree. So the set may only grow to a size, and only so
fast. A decision without a clock: the caller passes the time.
"""

from __future__ import annotations

from collections import deque

from topic_model.errors import TopicNotSupported
from topic_model.records import TopicRecord
from topic_model.settings import TopicSettings
from topic_model.topics import TopicPath, ancestors
from topic_model.tree import TopicTree

_WINDOW_S = 60


class TopicAdmission:
    """Decides for one gateway. Keeps how many topics it let in during each of the last sixty seconds, no more."""

    def __init__(self, settings: TopicSettings) -> None:
        self._settings = settings
        self._seconds: deque[tuple[int, int]] = deque()  # (second, topics let in during it), oldest first
        self._in_window = 0

    def admit(self, tree: TopicTree, path: TopicPath, now_s: float) -> TopicRecord | None:
        """The record that adds the topic, None when it is there already; `now_s` is any clock that does not go back.

        Only the topic itself is added; nodes above it stay nodes. Raises TopicNotSupported with the reason.
        """
        if path in tree:
            return None
        if self._settings.fixed:
            raise TopicNotSupported(f"there is no topic {path}, and the topic set is fixed", path)
        for above in ancestors(path):
            record = tree.get(above)
            if record is not None and record.final:
                raise TopicNotSupported(f"the topic {above} is final: there cannot be {path} below it", path)
        if len(tree) >= self._settings.maximum:
            raise TopicNotSupported(
                f"there is no topic {path}, and a notification cannot add it: there are {len(tree)} topics, and "
                f"topics.maximum is {self._settings.maximum}",
                path,
            )
        self._count(path, int(now_s))
        return TopicRecord(path)

    def _count(self, path: TopicPath, second: int) -> None:
        while self._seconds and self._seconds[0][0] <= second - _WINDOW_S:
            self._in_window -= self._seconds.popleft()[1]
        if self._in_window >= self._settings.new_per_minute:
            raise TopicNotSupported(
                f"there is no topic {path}, and a notification cannot add it now: {self._in_window} topics were added "
                f"in the last minute, and topics.new_per_minute is {self._settings.new_per_minute}",
                path,
            )
        self._in_window += 1
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1] = (second, self._seconds[-1][1] + 1)
        else:
            self._seconds.append((second, 1))
