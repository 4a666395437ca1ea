"""The pause after a failure: doubled after each further consecutive failure, up to a maximum."""

from __future__ import annotations

import random
from typing import NamedTuple


class Backoff(NamedTuple):
    """The first and the longest pause, in seconds."""

    first_s: float
    longest_s: float

    def after(self, failures: int) -> float:
        """The pause after this number of consecutive failures, from 1."""
        # 2.0 ** 1024 overflows; the longest pause is reached long before.
        return min(self.first_s * 2.0 ** min(failures - 1, 64), self.longest_s)

    def jittered(self, failures: int) -> float:
        """As `after`, up to a quarter less or more: clients that failed together do not return together."""
        return self.after(failures) * random.uniform(0.75, 1.25)  # noqa: S311  # no secret
