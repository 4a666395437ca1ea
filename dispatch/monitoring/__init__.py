"""The figures of the running job: what it counts, and what it looks up on request."""

from __future__ import annotations
