"""The records of the logs that dispatch writes: attempts, parked deliveries, dead letters."""

from __future__ import annotations
