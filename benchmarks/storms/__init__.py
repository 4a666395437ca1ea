"""A whole engine under load while its parts, its receivers or its disk fail; a record from outside says what was lost.

storm, outage, full_disk, soak  the programs: kill -9, a frozen Kafka, a full disk, hours of load
backlog_kills       kills in the middle of a backlog: what comes again
unsubscribe_rounds  subscribe, fail, unsubscribe, again and again: what they leave
victim              the engine, and how its parts are killed
load, receivers     who publishes and pulls; who is pushed to, in a process of its own
disk                a small disk that can be filled
record, books, judge    what was seen outside; what the engine says; what follows from both
"""

from __future__ import annotations
