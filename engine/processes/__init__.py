"""Child processes: start, supervision, end with their parent; their log files, ports and signals."""

from __future__ import annotations
