"""Spark: properties of the session, the source, queries that are restarted, removal of checkpoints."""

from __future__ import annotations
