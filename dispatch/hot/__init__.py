"""The partition task and the batch mode.

`task` is the work of a worker on rows in both modes: it matches, filters, and passes deliveries to `pump`, which drives
the pushes lane by lane. `stream` is the batch query on the driver, `sink` its part in a worker. Deliveries that would
delay a batch go to `dispatch.redelivery`.
"""

from __future__ import annotations
