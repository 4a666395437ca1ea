"""The figures of the running job.

metrics, endpoints_seen, under_way      what it counts
sources, job_sources, lag, progress     what it looks up when somebody asks
"""

from __future__ import annotations
