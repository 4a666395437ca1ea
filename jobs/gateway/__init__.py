"""The gateway as a process: `python -m jobs.gateway --config arborcast.toml`, one or several workers of it."""

from __future__ import annotations
