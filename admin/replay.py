"""Past notifications, delivered again to one subscription."""

from __future__ import annotations

from typing import NamedTuple

from arborcast.admin import control_log
from arborcast.admin.filters import TopicTest
from arborcast.admin.operations import recorded
from arborcast.admin.times import iso
from arborcast.core.errors import InfrastructureError
from arborcast.core.progress import Progress, no_progress
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import time_ms
from arborcast.dispatch.operations.replay import Replay, ReplayRefused, ReplaySpan
from arborcast.topic_model.records.operations import Operator, change


class PlannedReplay(NamedTuple):
    """A replay of the notifications at these places of their log, which were accepted from `since_ms` on and before
    `until_ms`."""

    kafka: KafkaSettings
    subscription: str
    replay: Replay
    places: list[tuple[int, int]]
    since_ms: int
    until_ms: int

    def send(self, progress: Progress = no_progress, by: Operator | None = None) -> int:
        """Send them; returns their number. `by` is the operator, by default the user of this process. Raises
        InfrastructureError with the command that sends the others; then some may have been sent."""
        span = {"replay": self.replay.id, "since_ms": self.since_ms, "until_ms": self.until_ms, "of": len(self.places)}
        with recorded(self.kafka, "replay", [change(self.subscription, None, span)], by) as results:
            try:
                sent = self.replay.send(self.places, progress)
            except InfrastructureError as error:
                raise InfrastructureError(
                    f"{error}. To send the others, repeat `arborcast replay --subscription {self.subscription} --since "
                    f"{iso(self.since_ms)} --until {iso(self.until_ms)}` with --continue {self.replay.id} and the same "
                    "--topic",
                    error.retry_after,
                ) from error
            results.append(f"{sent} sent")
        return sent


def run(
    kafka: KafkaSettings, subscription: str, since_ms: int, until_ms: int, limit: int, by: Operator | None = None
) -> int:
    """Deliver all notifications of an interval again; returns their number. Raises as `plan` and
    `PlannedReplay.send`."""
    planned = plan(kafka, subscription, since_ms, until_ms, TopicTest(), limit)
    return planned.send(by=by) if planned.places else 0


def plan(
    kafka: KafkaSettings,
    subscription: str,
    since_ms: int,
    until_ms: int | None,
    topic: TopicTest,
    limit: int,
    progress: Progress = no_progress,
    continued: str = "",
) -> PlannedReplay:
    """The replay of notifications that match the subscription's filters and were accepted in an interval (open-ended
    without `until_ms`), without those that the replay `continued` has sent. Raises ReplayRefused above `limit`,
    ExpressionError, InfrastructureError."""
    until_ms = time_ms() if until_ms is None else until_ms
    control = control_log.read_control(kafka)
    span = ReplaySpan(since_ms, until_ms, topic.test(kafka, control))
    replay = Replay(kafka, control.table, subscription, span, control.erasures.scopes, continued)
    places = replay.find(limit, progress)
    if len(places) > limit:
        raise ReplayRefused(
            f"more than {limit:,} notifications match: choose a shorter time, fewer topics, or a higher limit"
        )
    return PlannedReplay(kafka, subscription, replay, places, since_ms, until_ms)
