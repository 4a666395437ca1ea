"""The audit: matches = delivered + dead + expired + cancelled + dropped + pending.

The job writes the number of recipients of every notification before it delivers, and the outcome of every delivery. The
audit compares both, and the evaluations with the offsets of the `notifications` log. It reads the logs, not the tables,
which are some seconds behind.
"""

from __future__ import annotations

from arborcast.dispatch.operations.audit.examine import audit
from arborcast.dispatch.operations.audit.report import Kind, Problem, Report, Tally

__all__ = ["Kind", "Problem", "Report", "Tally", "audit"]
