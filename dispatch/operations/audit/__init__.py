"""Whether everything that was accepted is accounted for: matches = delivered + dead + expired + cancelled + dropped +
pending.

The job writes down of every notification how many subscriptions it was for before it delivers to any of them, and of
every delivery what became of it. The audit counts the second against the first, and the first against the offsets of
the `notifications` log. It reads the logs, not the tables: those lag behind, and are what may be wrong.
"""

from __future__ import annotations

from arborcast.dispatch.operations.audit.examine import audit
from arborcast.dispatch.operations.audit.report import Kind, Problem, Report, Tally

__all__ = ["Kind", "Problem", "Report", "Tally", "audit"]
