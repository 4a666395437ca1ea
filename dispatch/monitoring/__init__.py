"""The figures of the running job: what it counts, and what it looks up when somebody asks."""

from __future__ import annotations
