"""Metrics of the running job: counters, and values determined on request."""

from __future__ import annotations
