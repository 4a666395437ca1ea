"""What is kept in memory of a lane; what waits in it is in the store."""

from __future__ import annotations

from dataclasses import dataclass, field

from dispatch.envelope import Envelope
from dispatch.redelivery.parked import Delivery
from dispatch.retry import RetryPolicy
from topic_model.subscriptions import Subscription


@dataclass(slots=True)
class Lane:
    """The deliveries of one subscription that wait.

    `flight` are those whose push is under way, `pushing` says whether one of these pushes is that of untried ones (of
    any, in a strict lane), of which there is only one at a time. `held` says whether batches may not push past it,
    `gone` that its receiver has ended it. `seen` is the
    subscription of its last turn, `policy` and `envelope` are made from it; the envelope is kept only while there are
    pushes. Before `expires_ms` nothing in it is too old.
    """

    name: str
    endpoint: str = ""
    flight: set[Delivery] = field(default_factory=set)
    pushing: bool = False
    held: bool = False
    failing: bool = False
    suspended: bool = False
    gone: bool = False
    seen: Subscription | None = None
    policy: RetryPolicy | None = None
    envelope: Envelope | None = None
    expires_ms: int = 0
