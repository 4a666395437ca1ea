"""A whole engine under load while its parts, its receivers or its disk fail; an outside record shows losses.

storm, outage, soak     the programs: kill -9, a frozen Kafka or a full disk, hours of load
network                 the same for faults of the network
unsubscribe_rounds      subscribe, fail, unsubscribe, repeated: what they leave behind
victim                  the engine, and how its parts are killed
load, receivers         publishers and pulling clients; receivers, in a process of their own
disk, links             a small disk that can be filled; connections that can be broken
record, books, judge    the outside record, the engine's own logs, and the comparison of both
"""

from __future__ import annotations
