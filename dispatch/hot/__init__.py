"""The hot path: a batch from the `notifications` log to the receivers that answer.

`stream` is on the driver: the query, what a batch is given and what it reports. `sink` is in a worker: it matches,
filters, and hands over to `pump`, which drives the pushes lane by lane. What does not fit into a batch goes to
`dispatch.redelivery`.
"""

from __future__ import annotations
