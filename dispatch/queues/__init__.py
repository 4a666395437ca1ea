"""Work queues: of the servers of a topic one gets each request.

Requests wait in the `parked` log, under the lane of the queue (`queue_of`); the redelivery's thread pushes them.
`servers` (the order of the servers) and `verdict` (the decision after an answer) are pure; `backlog` finds the next
request for a server, `work` pushes it, `faults` are for users that get no answer.
"""

from __future__ import annotations
