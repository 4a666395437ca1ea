"""How much of a long batch is dispatched at once. Pure.

Counted in deliveries, not in notifications: how many of these a worker manages in a second depends on the machine and
on the receivers, and changes slowly; how many deliveries a notification comes to may change with the next one.
"""

from __future__ import annotations

# Before anything is known: a quick worker has done so many in a fifth of a second, a very slow one in ten.
_FIRST = 1_000

# Each round costs Spark a job, and reading the batch's rows again: some 50 to 100 ms.
_FEWEST = 100

# More at once would only be a guess.
_MOST_GROWTH = 4.0


class Rounds:
    """Each is to take about `target_s`. `most` is how many deliveries a task may take up in the next one."""

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self.most = _FIRST

    def took(self, seconds: float) -> None:
        """A round in which some task had all that it might have took so long."""
        growth = self._target_s / max(seconds, 0.001)
        self.most = max(_FEWEST, int(self.most * min(growth, _MOST_GROWTH)))
