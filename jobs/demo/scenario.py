"""What the demonstration publishes: a small building, a few times a second, partly outside the subscribed subtree."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from topic_model.topics import TopicPath, make_path

NAMESPACE = "urn:arborcast:demo"
SUBTREE = make_path([(NAMESPACE, "building")])


def _topic(*names: str) -> TopicPath:
    return make_path((NAMESPACE, name) for name in names)


@dataclass(frozen=True)
class Reading:
    """One thing to publish."""

    topic: TopicPath
    value: str

    def payload(self, sent_ms: int) -> bytes:
        """The notification's content; the time of sending rides along so that the view can show the latency."""
        return (
            f'<d:reading xmlns:d="{NAMESPACE}" sent-ms="{sent_ms}"><d:value>{self.value}</d:value></d:reading>'
        ).encode()


def readings() -> Iterator[Reading]:
    """An endless, repeatable day in the building."""
    for tick in itertools.count():
        yield Reading(_topic("building", "floor-1", "temperature"), f"{21 + 2 * math.sin(tick / 9):.1f} °C")
        yield Reading(_topic("building", "floor-1", "door"), "open" if tick % 5 == 0 else "closed")
        yield Reading(_topic("building", "floor-2", "temperature"), f"{22 + 3 * math.sin(tick / 7 + 1):.1f} °C")
        # Outside the subtree: published, kept, and rightly not delivered to this subscriber.
        yield Reading(_topic("parking", "gate"), "car in" if tick % 2 else "car out")
        yield Reading(_topic("building", "roof", "wind"), f"{8 + 5 * math.sin(tick / 4):.0f} km/h")
        if tick % 6 == 5:
            yield Reading(_topic("building", "floor-2", "smoke"), "ALARM")


def short(topic: str) -> str:
    """A topic of the demonstration as people read it."""
    return topic.replace(f"{{{NAMESPACE}}}", "")
