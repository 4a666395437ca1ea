"""What people read in the place of words that the tables, logs and metrics have: one word for one thing, everywhere.

Names of columns, logs, metrics and fields of JSON stay as they are; docs/command-line.md says which is which.
"""

from __future__ import annotations

from collections.abc import Mapping

WORDS: Mapping[str, str] = {
    # What became of a delivery.
    "parked": "waiting for retry",
    "pending": "waiting",
    "dead": "given up",
    # What a batch spends its time on.
    "recall": "reading what an earlier run did",
    "control": "reading changes of subscriptions",
    "view": "sharing these with the workers",
    "job": "matching and pushing",
    "feedback": "taking in what the workers say",
}
