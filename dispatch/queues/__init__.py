"""Work queues: of the servers of a topic one gets each request.

What waits is in the `parked` log, under the lane of the queue (`queue_of`); the redelivery's thread works it off. Pure
is who is next (`servers`) and what follows from an answer (`verdict`); `backlog` asks the store what is next for a
server, and `work` pushes.
"""

from __future__ import annotations
