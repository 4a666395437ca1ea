"""Which lanes a batch does not wait for. Pure.

A batch is as long as its longest lane, and the next one waits for it. So when the others are through, what a slow
receiver has left is handed to the redelivery, which goes on with it at the receiver's own pace. Not so when most lanes
are still busy: then it is not a receiver that is slow, but much to do, and parking it would only make it more.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

# So few lanes are taken for stragglers even when no other one has ended yet.
_FEW = 8


@dataclass(frozen=True, slots=True)
class Progress:
    """A lane that has something waiting: how much, and how it went so far in this batch."""

    subscription: str
    waiting: int
    pushes: int
    messages: int
    spent_s: float

    def remaining_s(self) -> float:
        """How long the rest will take; unknown counts as for ever."""
        if not self.pushes:
            return math.inf
        return self.waiting / self.messages * self.spent_s


def stragglers(unfinished: Collection[Progress], finished: int, elapsed_s: float, budget_s: float) -> list[str]:
    """The subscriptions whose lanes are not to be waited for, `finished` other lanes being through."""
    if elapsed_s < budget_s or len(unfinished) > max(finished, _FEW):
        return []
    return [
        progress.subscription
        for progress in unfinished
        if progress.remaining_s() > budget_s and (progress.pushes or elapsed_s > 2 * budget_s)
    ]
