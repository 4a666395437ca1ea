"""What happens to deliveries that are parked: each is tried when its time has come, at its endpoint's own pace.

    work, lane, lanes, choosing      who is tried when (time, chance, transport, store and journal are passed in)
    agenda, waiting_room, endpoints      who waits for a time, for room, for an endpoint's breaker
    pushes              a push, and what follows from its outcome
    stopping            what becomes of subscriptions whose receiver is gone, or whose endpoint fails for too long
    settling            from the outcome of a push to its rows, its tries, its end
    parked, parked_store, parking   the `parked` log: its records, its fold in a local file, writing to it
    dead_letters        the `dead` log's records
    lane_book           which lanes no batch may push past
    journal             what it writes down, and in which order
    reading, health_memory  the log on from where the file is; what the file remembers of sick endpoints
    shift               one life of the redelivery: its connections, from a start to the next failure
    events, ports       what it tells operators; what it asks of the rest of the job

`dispatch.redelivery.redeliverer` is the thread around it that the job starts.
"""

from __future__ import annotations
