"""What the gateway takes in and hands out, without the dispatch job.

gateway, client, pulling    accepting; publishing from Python; pull points
security                    ways to say who one is, signed pushes, overload
publishers, http_load, guarded_load     load, each in a process of its own; started by measurements
"""

from __future__ import annotations
