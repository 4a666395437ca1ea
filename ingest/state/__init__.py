"""The gateway's views of the logs, and its writers."""

from __future__ import annotations
