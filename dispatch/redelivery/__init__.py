"""The redelivery of parked deliveries: each is tried when it is due, at the pace of its endpoint.

`redeliverer` is the thread that the job starts, `session` one life of it, from a start to the next failure. `scheduler`
decides whose turn it is; time, chance, transport, store and journal are passed in.
"""

from __future__ import annotations
