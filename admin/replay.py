"""Notifications of the past, delivered again to one subscription."""

from __future__ import annotations

from typing import NamedTuple

from arborcast.admin import control_log
from arborcast.admin.filters import TopicTest
from arborcast.core.progress import Progress, untold
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import time_ms
from arborcast.dispatch.operations.replay import Replay, ReplayRefused, ReplaySpan


class PlannedReplay(NamedTuple):
    """A replay of the notifications at these places of their log, which were accepted from `since_ms` on and before
    `until_ms`."""

    replay: Replay
    places: list[tuple[int, int]]
    since_ms: int
    until_ms: int

    def send(self, progress: Progress = untold) -> int:
        """Send them; returns their number. Raises InfrastructureError; then some may have been sent."""
        self.replay.progress = progress
        return self.replay.send(self.places)


def plan(
    kafka: KafkaSettings,
    subscription: str,
    since_ms: int,
    until_ms: int | None,
    topic: TopicTest,
    limit: int,
    progress: Progress = untold,
) -> PlannedReplay:
    """The replay of notifications that match the subscription's filters and were accepted in an interval (open-ended
    without `until_ms`). Raises ReplayRefused above `limit`, ExpressionError, InfrastructureError."""
    until_ms = time_ms() if until_ms is None else until_ms
    control = control_log.read_control(kafka)
    span = ReplaySpan(since_ms, until_ms, topic.test(kafka, control))
    replay = Replay(kafka, control.table, subscription, span, progress, control.erasures.scopes)
    places = replay.find(limit)
    if len(places) > limit:
        raise ReplayRefused(
            f"more than {limit:,} notifications match: choose a shorter time or fewer topics, or a higher --limit"
        )
    return PlannedReplay(replay, places, since_ms, until_ms)
