"""Whether everything that was accepted is accounted for: matches = delivered + dead + expired + cancelled + pending.

    examine         the audit itself
    reading, slim   stretches of logs; what is decoded of the `attempts` log
    ledger, deliveries, balance     that log as two sides of a ledger, and whether they are equal (pure)
    deep, kept      the deeper examination: matching anew; what is parked and what is dead
    report          what was found

The job writes down of every notification how many subscriptions it was for before it delivers to any of them, and of
every delivery what became of it. The audit counts the second against the first, and the first against the offsets of
the `notifications` log. It reads the logs, not the tables: those lag behind, and are what may be wrong.
"""

from __future__ import annotations

from dispatch.operations.audit.examine import audit
from dispatch.operations.audit.report import Kind, Problem, Report, Tally

__all__ = ["Kind", "Problem", "Report", "Tally", "audit"]
