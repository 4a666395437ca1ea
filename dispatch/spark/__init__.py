"""Spark: properties of the session, the source, queries that are restarted, checkpoints repaired after a crash."""

from __future__ import annotations
