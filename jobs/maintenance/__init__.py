"""Backups of an engine's logs from which any Kafka can be filled: `arborcast backup`, `arborcast restore`.

Offsets cannot be restored, and much in the logs speaks of offsets. So a backup does not hold copies of the logs, but
what an engine that begins anew has to be told in order to go on: every topic, subscription, pull point and
registration; what waits in pull points; dead letters; and each notification that is still owed to somebody, in order.
What was settled is history: it is in the tables, which are backed up as files are.
"""

from __future__ import annotations
