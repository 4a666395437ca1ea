"""The embedded stack: Java, jars, a real broker, and the supervisor that keeps the parts running."""

from __future__ import annotations
