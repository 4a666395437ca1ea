"""What happens to deliveries that are parked: each is tried when its time has come, at its endpoint's own pace.

`redeliverer` is the thread that the job starts, `session` one life of it, from a start to the next failure. `scheduler`
decides whose turn it is; time, chance, transport, store and journal are passed in.
"""

from __future__ import annotations
