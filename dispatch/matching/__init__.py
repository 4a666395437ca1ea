"""The workers' view: the routing table as a base and an overlay, its recent history, and content filters."""

from __future__ import annotations
