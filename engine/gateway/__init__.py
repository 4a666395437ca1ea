"""The gateway as a process: `python -m arborcast.engine.gateway --config arborcast.toml`, one or several workers of it.

`process` and `parts` assemble one gateway, `workers` runs several on one port, `lease` elects the one for singleton
work, and `metrics` declares its metrics. `zmq_edge` is a process beside it. Requests are handled by `ingest`.
"""

from __future__ import annotations
