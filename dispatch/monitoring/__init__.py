"""The figures of the running job: what it counts (metrics, endpoints_seen) and what it looks up when somebody asks
(job_sources: lag, progress)."""

from __future__ import annotations
