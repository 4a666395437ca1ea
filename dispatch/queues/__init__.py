"""Work queues: each request of a topic goes to one of its servers.

Requests wait in the `parked` log, under the lane of the queue (`queue_of`); the redelivery's thread pushes them.
`servers` (the order of the servers) and `verdict` (the decision after an answer) are pure; `backlog` finds the next
request for a server, `work` pushes it, `faults` are for users without an answer.
"""

from __future__ import annotations
