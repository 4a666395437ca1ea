"""The redelivery of parked deliveries: each is pushed when it is due, at the pace of its endpoint.

`redeliverer` is the thread that the job starts, `session` its state from a start to the next failure. `scheduler`
decides the order; time, chance, transport, store and journal are parameters.
"""

from __future__ import annotations
