"""Parts of the hot path over a journal in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from unittest.mock import create_autospec

from arborcast.dispatch.delivery.journal import Journal
from arborcast.dispatch.hot.batch_outcomes import BatchOutcomes
from arborcast.dispatch.hot.intake import Exclusions, Intake
from arborcast.dispatch.hot.lanes import Lanes
from arborcast.dispatch.hot.sink_journal import SinkJournal
from arborcast.dispatch.hot.waiting import Received
from arborcast.dispatch.matching.filters import Allowance, Conditions, FilterEvaluator
from arborcast.dispatch.settings import PushSettings, RetrySettings
from tests.support.make import notification

NO_PULL_POINTS = create_autospec(SinkJournal)

RETRY = RetrySettings(jitter=0.0, breaker_failures=3, batch_wait_s=2.0)


def received(name: str = "n", offset: int = 0, topic: str = "a", batch: int = 7, **facts: Any) -> Received:
    """A notification of partition 0."""
    return Received(notification(name, topic, **facts), 0, offset, batch)


def outcomes_in(
    journal: Journal, now: Callable[[], float] = lambda: 1.0, retry: RetrySettings = RETRY, **push: Any
) -> BatchOutcomes:
    return BatchOutcomes(journal, PushSettings(**push), retry, now=now, chance=lambda: 0.0)


def limits(messages: int = 10, size: int = 10_000, per_endpoint: int = 16, per_host: int = 128) -> PushSettings:
    """The limits of lanes: of one push, and of pushes in flight."""
    return PushSettings(
        max_notify_messages=messages,
        max_notify_bytes=size,
        max_in_flight_per_endpoint=per_endpoint,
        max_in_flight_per_host=per_host,
    )


def intake_of(outcomes: BatchOutcomes, journal: object = NO_PULL_POINTS, **parts: Any) -> Intake:
    """An intake with new lanes."""
    evaluator = FilterEvaluator(Conditions(), Allowance(400.0, 100.0), parts.pop("unjudged", frozenset()))
    lanes = Lanes(parts.pop("limits", limits()))
    return Intake(cast(Any, journal), lanes, outcomes, evaluator, parts.pop("exclusions", Exclusions()), **parts)
