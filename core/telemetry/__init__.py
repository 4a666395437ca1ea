"""How a process tells what it does: metrics, traces, and the form of its log lines."""

from __future__ import annotations
