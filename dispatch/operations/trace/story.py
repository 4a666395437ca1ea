"""What a trace tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from dispatch.operations.trace.control import ControlHistory
from topic_model.records.notifications import Notification

Row = Mapping[str, object]

"""A row of a table, by column."""

AttemptRow = Row


@dataclass(frozen=True)
class BatchFate:
    """What became of the batch that a notification belongs to. `number` None: not known (any more)."""

    number: int | None
    begun: bool
    done: bool


@dataclass(frozen=True)
class MatchedBy:
    """When and by which batch a notification was matched, and for how many subscriptions. `control` is where the
    control log ended for it."""

    at_ms: int
    batch: int
    control: int
    subscriptions: int


@dataclass(frozen=True)
class Evidence:
    """All that is known of one notification. `logged_ms` is the time stamp of its Kafka record (when the broker took it
    into the log), 0 when it is not known.

    `attempts` are in order of time. `waiting` are the subscriptions for which the retries table has it, with the time
    when they are due. `forgotten` are rows of the table of subscriptions, for those that the control log does not have
    any more; `endpoints` the latest rows about the health of endpoints. `notes` are for the reader: what could not be
    looked at.
    """

    id: str
    notification: Notification | None
    control: ControlHistory
    logged_ms: int = 0
    partition: int = -1
    offset: int = -1
    batch: BatchFate | None = None
    evaluated: MatchedBy | None = None
    attempts: Sequence[AttemptRow] = ()
    waiting: Mapping[str, datetime | None] = field(default_factory=dict)
    forgotten: Mapping[str, Row] = field(default_factory=dict)
    endpoints: Mapping[str, Row] = field(default_factory=dict)
    notes: Sequence[str] = ()


def utc(milliseconds: int) -> datetime:
    """Milliseconds since the epoch as a time."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


Outcome = Literal["delivered", "waiting", "dead", "expired", "cancelled", "skipped", "pending", "no match"]

"""How it stands with one subscription: the final states of a delivery; `waiting` for another try; `skipped`: its topic
matched, but it was not to have it; `pending`: nothing is known yet; `no match`: it did not ask for it."""


@dataclass(frozen=True)
class Step:
    """Something that happened, in words. `at` None: when is not known."""

    at: datetime | None
    what: str
    detail: str = ""


@dataclass(frozen=True)
class DeliveryStory:
    """One subscription: through which expression it was matched, what happened, and how it stands."""

    subscription: str
    endpoint: str
    expression: str
    outcome: Outcome
    why: str
    steps: Sequence[Step] = ()


@dataclass(frozen=True)
class Story:
    """All that is to be told of a notification."""

    notification: str
    found: bool
    topic: str = ""
    publisher: str = ""
    payload: str = ""
    traceparent: str = ""
    steps: Sequence[Step] = ()
    deliveries: Sequence[DeliveryStory] = ()
    notes: Sequence[str] = ()
