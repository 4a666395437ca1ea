"""Metrics, traces, and the format of log lines."""

from __future__ import annotations
