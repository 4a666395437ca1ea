"""The gateway as a process: `python -m arborcast.engine.gateway --config arborcast.toml`, one or several workers of it.

`process` and `parts` put one gateway together, `workers` runs several on one port, `lease` what only one of them may
do, and `metrics` declares what it shows. `zmq_edge` is a process beside it. What a request means is in `ingest`.
"""

from __future__ import annotations
