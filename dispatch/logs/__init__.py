"""The records of the logs that dispatch writes: attempts, parked deliveries and the lanes they hold, dead letters."""

from __future__ import annotations
