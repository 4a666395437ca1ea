"""A whole engine under load while its parts, its receivers or its disk fail; an outside record shows losses.

storm, outage, soak     the programs: kill -9, a frozen Kafka or a full disk, hours of load
unsubscribe_rounds      subscribe, fail, unsubscribe, repeated: what they leave behind
victim                  the engine, and how its parts are killed
load, receivers         publishers and pulling clients; receivers, in a process of their own
disk                    a small disk that can be filled
record, books, judge    the outside record, the engine's own logs, and the comparison of both
"""

from __future__ import annotations
