"""Metrics of an engine: endpoints, history, figures and the report.

`endpoint` and `stack_monitor` serve metrics, `samples` and `history` store them, `watching`, `report`, `charts` and
`figures` format them, `summary` computes the values that all of these show. A failure in this package loses no
delivery.
"""

from __future__ import annotations
