"""The gateway as a process: `python -m jobs.gateway --config arborcast.toml`, one or several workers of it.

process, parts          one gateway, put together from its parts
workers                 several on one port
duties, lease_keeper    what must be done once, however many there are
metrics                 what it shows of itself
"""

from __future__ import annotations
