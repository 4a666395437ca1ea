"""The streaming job: one at a time on its logs, with its parts started and stopped in order, and hangs detected."""

from __future__ import annotations
