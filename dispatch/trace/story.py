"""What a trace tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

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
